#include "cyfa/model/state.h"

namespace cyfa {
namespace {

template <class F>
ModelState mapped(const ModelState& state, const F& f) {
  ModelState out;
  for (size_t layer = 0; layer < state.layers.size(); ++layer) {
    MixerState tensors;
    for (size_t i = 0; i < state.layers[layer].size(); ++i) tensors.push_back(f(layer, i));
    out.layers.push_back(std::move(tensors));
  }
  return out;
}

}  // namespace

int64_t ModelState::bytes() const {
  int64_t sum = 0;
  for (const MixerState& layer : layers) {
    for (const at::Tensor& x : layer) sum += static_cast<int64_t>(x.nbytes());
  }
  return sum;
}

ModelState ModelState::clone() const {
  return mapped(*this, [&](size_t layer, size_t i) { return layers[layer][i].clone(); });
}

ModelState ModelState::select(const std::vector<int64_t>& sequences) const {
  const at::Tensor rows = at::tensor(sequences, at::kLong);
  return mapped(*this, [&](size_t layer, size_t i) { return layers[layer][i].index_select(0, rows.to(layers[layer][i].device())); });
}

ModelState ModelState::concatenate(std::span<const ModelState> states) {
  if (states.empty()) return {};
  return mapped(states.front(), [&](size_t layer, size_t i) {
    std::vector<at::Tensor> parts;
    int64_t longest = 0;
    for (const ModelState& state : states) {
      parts.push_back(state.layers[layer][i]);
      if (parts.back().dim() > 1) longest = std::max(longest, parts.back().size(1));
    }
    for (at::Tensor& part : parts) {
      if (part.dim() < 2 || part.size(1) == longest) continue;
      std::vector<int64_t> rest = part.sizes().vec();
      rest[1] = longest - part.size(1);
      part = at::cat({part, at::zeros(rest, part.options())}, 1);
    }
    return at::cat(parts, 0);
  });
}

}  // namespace cyfa
