#include "cyfa/analysis/reads.h"

#include <stdexcept>

#include "cyfa/mixers/call.h"
#include "cyfa/mixers/cyclic_flow.h"

namespace cyfa::analysis {
namespace {

std::vector<double> numbers(const at::Tensor& x) {
  const at::Tensor values = x.to(at::kCPU, at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

// The first distance up to which at least `share` of the weight lies.
int64_t distance_of(const std::vector<double>& by_distance, double share) {
  double sum = 0;
  for (size_t d = 0; d < by_distance.size(); ++d) {
    sum += by_distance[d];
    if (sum >= share) return static_cast<int64_t>(d);
  }
  return static_cast<int64_t>(by_distance.size()) - 1;
}

}  // namespace

void walk_reads(const CausalLM& model, const Weights& w, const at::Tensor& ids,
                const std::function<void(const ClockLayer&, const ops::CyclicFlowReads&)>& see) {
  const at::NoGradGuard no_grad;
  const std::vector<ClockLayer> clocks = clock_layers(model);
  at::Tensor x = model.embed(w, ids);
  auto clock = clocks.begin();
  for (size_t i = 0; clock != clocks.end(); ++i) {
    const Block& block = *model.layers()[i].block;
    const Weights own = model.layers()[i].weights(w);
    Call call = block.call(own, x);
    if (clock->layer == i) see(*clock++, *cyclic_flow_reads(block.mixer(), call));
    x = block.forward(call, x);
  }
}

std::vector<ReadAges> read_ages(const CausalLM& model, const Weights& w, const at::Tensor& ids, const Progress& progress) {
  const int64_t N = ids.size(0), T = ids.size(1);
  const std::vector<Head> heads = clock_heads(model);
  const auto H = static_cast<int64_t>(heads.size());
  const at::TensorOptions real = at::TensorOptions(at::kDouble).device(model.device());
  const at::Tensor by_distance = at::zeros({H, T}, real), clock_mean = at::zeros({H}, real), wrapped = at::zeros({H}, real);
  const at::Tensor token = at::arange(T, real.dtype(at::kLong));
  const at::Tensor distance = (token.unsqueeze(1) - token).clamp_min(0).flatten();  // of read t and write i
  for (int64_t n = 0; n < N; ++n) {
    walk_reads(model, w, ids.narrow(0, n, 1), [&](const ClockLayer& layer, const ops::CyclicFlowReads& reads) {
      const at::Tensor size = reads.writes[0].transpose(0, 1).abs();  // [H, T, T]
      const at::Tensor share = size / size.sum(-1, true).clamp_min(1e-300) / static_cast<double>(N * T);
      const at::Tensor clock = reads.clock[0].t();  // [H, T]
      const at::Tensor age = clock.unsqueeze(2) - clock.unsqueeze(1);
      const auto rows = [&](const at::Tensor& x) { return x.narrow(0, layer.first, layer.heads); };
      rows(by_distance).index_add_(1, distance, share.flatten(1));
      rows(clock_mean).add_((share * age).sum({1, 2}));
      rows(wrapped).add_((share * age.gt(static_cast<double>(layer.slots))).sum({1, 2}));
    });
    if (progress) progress(n + 1, N);
  }
  std::vector<ReadAges> out;
  const std::vector<double> clock = numbers(clock_mean), beyond = numbers(wrapped);
  for (size_t i = 0; i < heads.size(); ++i) {
    ReadAges one{
        .head = heads[i], .by_distance = numbers(by_distance[static_cast<int64_t>(i)]), .clock_mean = clock[i], .wrapped = beyond[i]};
    for (size_t d = 0; d < one.by_distance.size(); ++d) one.tokens_mean += static_cast<double>(d) * one.by_distance[d];
    one.tokens_p50 = distance_of(one.by_distance, 0.5);
    one.tokens_p90 = distance_of(one.by_distance, 0.9);
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<SlotUse> slot_use(const CausalLM& model, const Weights& w, const at::Tensor& ids, int64_t parts, const Progress& progress) {
  const at::NoGradGuard no_grad;
  if (parts < 1 || ids.size(1) % parts != 0) {
    throw std::invalid_argument("slot_use: " + std::to_string(ids.size(1)) + " tokens cannot be cut into " + std::to_string(parts) +
                                " equal parts");
  }
  const std::vector<ClockLayer> clocks = clock_layers(model);
  std::vector<SlotUse> out;
  for (const Head& head : clock_heads(model)) out.push_back({.head = head, .by_slot = {}, .slots = {}});
  const int64_t length = ids.size(1) / parts;
  ModelState state = model.initial_state(ids.size(0));
  for (int64_t part = 0; part < parts; ++part) {
    state = model.forward(w, ids.narrow(1, part * length, length), std::nullopt, &state).final_state;
    for (const ClockLayer& layer : clocks) {
      const at::Tensor energy = model.view(state, layer.layer)->energy;  // [N, H, m]
      const at::Tensor all = energy.sum(-1).clamp_min(1e-300);
      const std::vector<double> used = numbers((all.square() / energy.square().sum(-1).clamp_min(1e-300)).mean(0));
      const at::Tensor share = (energy / all.unsqueeze(-1)).mean(0);
      for (int64_t h = 0; h < layer.heads; ++h) {
        SlotUse& one = out[static_cast<size_t>(layer.first + h)];
        one.slots.push_back(used[static_cast<size_t>(h)]);
        if (part + 1 == parts) one.by_slot = numbers(share[h]);
      }
    }
    if (progress) progress(part + 1, parts);
  }
  return out;
}

}  // namespace cyfa::analysis
