#include "cyfa/analysis/clock.h"

#include <algorithm>
#include <stdexcept>

#include "cyfa/mixers/cyclic_flow.h"
#include "cyfa/ops/dense/cross_entropy.h"

namespace cyfa::analysis {

std::string Head::name() const {
  std::string out = "L";
  out += std::to_string(layer);
  out += "H";
  out += std::to_string(head);
  return out;
}

bool has_clock(const CausalLM& model) {
  return std::any_of(model.layers().begin(), model.layers().end(),
                     [](const CausalLM::Layer& layer) { return cyclic_flow_spec(layer.block->mixer()) != nullptr; });
}

std::vector<ClockLayer> clock_layers(const CausalLM& model) {
  std::vector<ClockLayer> layers;
  int64_t first = 0;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const CyclicFlowSpec* spec = cyclic_flow_spec(model.layers()[i].block->mixer());
    if (spec == nullptr) continue;
    layers.push_back({i, first, spec->config.shape.heads, spec->config.slots - 1});
    first += spec->config.shape.heads;
  }
  if (layers.empty()) {
    throw std::invalid_argument("the model is a " + model.config().kind->model_type +
                                ", which has no clock; wanted a model with cyclic_flow_attention layers");
  }
  return layers;
}

std::vector<Head> clock_heads(const CausalLM& model) {
  std::vector<Head> heads;
  for (const ClockLayer& layer : clock_layers(model)) {
    for (int64_t h = 0; h < layer.heads; ++h) heads.push_back({layer.layer, h});
  }
  return heads;
}

at::Tensor forward_with_clock(const CausalLM& model, const Weights& w, const at::Tensor& ids, const ClockHook& hook) {
  const std::vector<ClockLayer> clocks = clock_layers(model);
  auto clock = clocks.begin();
  at::Tensor x = model.embed(w, ids);
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const Block& block = *model.layers()[i].block;
    const Weights own = model.layers()[i].weights(w);
    Call call = block.call(own, x);
    if (clock != clocks.end() && clock->layer == i) {
      call.hook_clock([&hook, layer = *clock](const at::Tensor& delta) { return hook(layer, delta); });
      ++clock;
    }
    x = block.forward(call, x);
  }
  return x;
}

std::vector<double> sequence_losses(const CausalLM& model, const Weights& w, const at::Tensor& ids, const ClockHook& hook) {
  const at::NoGradGuard no_grad;
  const int64_t T = ids.size(1) - 1;
  const at::Tensor hidden = forward_with_clock(model, w, ids.narrow(1, 0, T), hook);
  const at::Tensor normed = ops::rms_norm(hidden, w[model.norm_weight()], model.config().backbone.norm_eps);
  const at::Tensor head = w[model.head_weight()].to(normed.scalar_type());
  std::vector<double> losses;
  for (int64_t n = 0; n < ids.size(0); ++n) {
    losses.push_back(ops::linear_cross_entropy(normed[n], head, ids[n].narrow(0, 1, T).to(normed.device(), at::kLong)).item<double>());
  }
  return losses;
}

}  // namespace cyfa::analysis
