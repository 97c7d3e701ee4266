#include "cyfa/analysis/page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cyfa/analysis/page_template.h"
#include "cyfa/analysis/reads.h"
#include "cyfa/data/utf8.h"

namespace cyfa::analysis {
namespace {

using PageJson = nlohmann::ordered_json;

constexpr int64_t kWriters = 8;  // writes listed for each read

// Numbers with three decimals keep the page small.
double rounded(double x) { return std::round(x * 1000) / 1000; }

PageJson list(const at::Tensor& x) {
  const at::Tensor values = x.to(at::kCPU, at::kDouble).contiguous();
  PageJson out = PageJson::array();
  for (int64_t i = 0; i < values.numel(); ++i) out.push_back(rounded(values.const_data_ptr<double>()[i]));
  return out;
}

std::string encoded(const at::Tensor& x) {
  const at::Tensor values = x.round().clamp(0, 255).to(at::kCPU, at::kByte).contiguous();
  return base64({values.const_data_ptr<uint8_t>(), values.const_data_ptr<uint8_t>() + values.numel()});
}

// For each token, the writes of largest weight in its read, largest first: [[[writer, weight], ...], ...] of writes [T, T].
PageJson writers_of(const at::Tensor& writes) {
  const at::Tensor weights = writes.to(at::kCPU, at::kDouble).contiguous();
  const int64_t T = weights.size(0);
  const auto top = std::get<1>(weights.abs().topk(std::min(kWriters, T), 1));
  PageJson out = PageJson::array();
  for (int64_t t = 0; t < T; ++t) {
    PageJson row = PageJson::array();
    for (int64_t n = 0; n < std::min(top.size(1), t + 1); ++n) {
      const auto i = top[t][n].item<int64_t>();
      const double weight = rounded(weights.const_data_ptr<double>()[t * T + i]);
      if (i <= t && weight != 0) row.push_back({i, weight});
    }
    out.push_back(row);
  }
  return out;
}

// The energy of every slot after every token, by layer with a clock: [H, T, m].
std::vector<at::Tensor> energies(const CausalLM& model, const Weights& w, const at::Tensor& ids, const Progress& progress) {
  const std::vector<ClockLayer> clocks = clock_layers(model);
  std::vector<std::vector<at::Tensor>> by_token(clocks.size());
  ModelState state = model.initial_state(1);
  for (int64_t t = 0; t < ids.size(0); ++t) {
    model.step(w, ids.narrow(0, t, 1), state);
    for (size_t i = 0; i < clocks.size(); ++i) by_token[i].push_back(model.view(state, clocks[i].layer)->energy[0]);
    if (progress) progress(t + 1, ids.size(0));
  }
  std::vector<at::Tensor> out;
  out.reserve(by_token.size());
  for (const std::vector<at::Tensor>& tokens : by_token) out.push_back(at::stack(tokens, 1));
  return out;
}

}  // namespace

std::string base64(const std::vector<uint8_t>& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = (group << 8) | (k < n ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= n ? kDigits[(group >> (18 - 6 * k)) & 63] : '=';
  }
  return out;
}

std::string clock_page(const CausalLM& model, const Weights& w, const at::Tensor& ids, const Tokenizer& tokenizer, const std::string& title,
                       size_t shown, const Progress& progress) {
  const at::NoGradGuard no_grad;
  PageJson data = {{"title", title}, {"head", shown}, {"tokens", PageJson::array()}, {"heads", PageJson::array()}};
  for (int64_t t = 0; t < ids.size(0); ++t) data["tokens"].push_back(as_utf8(tokenizer.piece(ids[t].item<int64_t>())));
  const std::vector<at::Tensor> energy = energies(model, w, ids, progress);
  size_t index = 0;
  walk_reads(model, w, ids.unsqueeze(0), [&](const ClockLayer& layer, const ops::CyclicFlowReads& reads) {
    for (int64_t h = 0; h < layer.heads; ++h) {
      const at::Tensor clock = reads.clock[0].select(1, h), slots = reads.slots[0].select(1, h), of_head = energy[index][h];
      const at::Tensor delta = at::cat({clock.narrow(0, 0, 1), clock.diff()});
      // The page squares the bytes of energies, so that faint slots keep their digits.
      data["heads"].push_back({{"name", Head{layer.layer, h}.name()},
                               {"m", layer.slots},
                               {"mean", rounded(delta.mean().item<double>())},
                               {"delta", list(delta)},
                               {"beta", list(reads.beta[0].select(1, h))},
                               {"energy", encoded((of_head / of_head.max().clamp_min(1e-300)).sqrt() * 255)},
                               {"reads", encoded(slots / slots.abs().amax(1, true).clamp_min(1e-300) * 127 + 128)},
                               {"writers", writers_of(reads.writes[0].select(1, h))}});
    }
    ++index;
  });
  const std::string_view whole = kPageTemplate, mark = "@@DATA@@";
  const size_t place = whole.find(mark);
  std::string page(whole.substr(0, place));
  for (const char c : data.dump()) {
    if (c == '<') {
      page += "\\u003c";  // no tag can begin inside the data
    } else {
      page += c;
    }
  }
  return page.append(whole.substr(place + mark.size()));
}

}  // namespace cyfa::analysis
