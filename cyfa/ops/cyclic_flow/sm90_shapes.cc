// The sm90 backend's entry, and the parts of it that follow from shapes alone: what forward saves, and the padding of heads to the kernels'
// widths. Compiles without CUDA; there the backend refuses.
#include <algorithm>
#include <cmath>

#include "cyfa/ops/common/check.h"
#include "cyfa/ops/cyclic_flow/sm90.h"

namespace cyfa::ops {
namespace sm90 {

std::vector<at::Tensor> empty_saved(const at::TensorOptions& q, const CyclicFlowShape& s, bool kept) {
  const int64_t sections = (s.M + kSectionSlots - 1) / kSectionSlots, slots = sections * kSectionSlots;
  // Each of N packed sequences may end in a partial tile.
  const int64_t tiles = s.packed ? s.B * s.T / kTileTokens + s.N : s.B * ((s.T + kTileTokens - 1) / kTileTokens);
  const int64_t tokens = s.B * s.T;
  const auto single = q.dtype(at::kFloat);
  return {at::empty({kept ? sections * (tiles * s.H * 2 + 1) : 0, kSectionSlots, std::max(s.K, s.V)}, q),
          at::empty({kept ? s.H * slots * slots / 2 + s.H + s.K : 0}, single), at::empty({kept ? 5 : 0, s.H, tokens}, single),
          at::empty({kept ? tokens : 0, s.H, slots}, q.dtype(at::kHalf))};
}

#ifndef CYFA_CUDA
std::string refusal(const CyclicFlowInputs&) { return "this build has no CUDA kernels"; }
CyclicFlowForward forward(const CyclicFlowInputs&, const CyclicFlowSettings&) {
  check::fail(kCyclicFlow, "backend sm90: this build has no CUDA kernels");
}
CyclicFlowGradients backward(const CyclicFlowInputs&, const CyclicFlowSettings&, at::TensorList, const CyclicFlowOutputGradients&) {
  check::fail(kCyclicFlow, "backend sm90: this build has no CUDA kernels");
}
#endif

namespace {

std::vector<at::Tensor> empty_saved_of_settings(const at::TensorOptions& q, const CyclicFlowShape& s, const CyclicFlowSettings& settings) {
  return empty_saved(q, s, settings.keep == Keep::kStatesAndScores);
}

// The width of the kernels that serve heads of `columns`.
int64_t kernel_width(int64_t columns, const CyclicFlowShape& shape) {
  int64_t width = kWidth;
  while (shape.M <= kSectionSlots && width / 2 >= std::max(columns, kLeastWidth)) width /= 2;
  return width;
}

// Pads heads with zeros to K and V columns. That adds nothing to any sum but the mean of RMSNorm: over K columns the mean is a share of
// what it was, so eps is multiplied by that share, and the weights by its square root.
CyclicFlowOutput call_padded(const CyclicFlowInputs& in, CyclicFlowSettings settings, const CyclicFlowShape& shape, int64_t K, int64_t V) {
  const int64_t more_k = K - shape.K, more_v = V - shape.V;
  const double share = static_cast<double>(shape.K) / static_cast<double>(K);
  CyclicFlowInputs wide = in;
  wide.q = at::constant_pad_nd(in.q, {0, more_k});
  wide.k = at::constant_pad_nd(in.k, {0, more_k});
  wide.v = at::constant_pad_nd(in.v, {0, more_v});
  for (std::optional<at::Tensor>* weight : {&wide.q_norm_weight, &wide.k_norm_weight}) {
    if (*weight) *weight = at::constant_pad_nd(**weight * std::sqrt(share), {0, more_k});
  }
  if (in.initial_state) {
    wide.initial_state->k = at::constant_pad_nd(in.initial_state->k, {0, 0, 0, more_k});
    wide.initial_state->v = at::constant_pad_nd(in.initial_state->v, {0, more_v});
  }
  settings.norm_eps *= share;
  if (settings.again) {
    settings.again = [again = settings.again, more_k, more_v] {
      const auto [q, k, v] = again();
      return std::array<at::Tensor, 3>{at::constant_pad_nd(q, {0, more_k}), at::constant_pad_nd(k, {0, more_k}),
                                       at::constant_pad_nd(v, {0, more_v})};
    };
  }
  CyclicFlowOutput out = call_cyclic_flow(wide, settings);
  out.o = out.o.narrow(3, 0, shape.V).contiguous();
  if (settings.final_state) {
    out.final_state.k = out.final_state.k.narrow(2, 0, shape.K).contiguous();
    out.final_state.v = out.final_state.v.narrow(3, 0, shape.V).contiguous();
  }
  return out;
}

CyclicFlowOutput call(const CyclicFlowInputs& in, const CyclicFlowSettings& settings) {
  const CyclicFlowShape shape = check_cyclic_flow(in);
  const int64_t K = kernel_width(shape.K, shape), V = kernel_width(shape.V, shape);
  return K == shape.K && V == shape.V ? call_cyclic_flow(in, settings) : call_padded(in, settings, shape, K, V);
}

}  // namespace
}  // namespace sm90

CyclicFlowBackend cyclic_flow_sm90() {
  return {Backend::kSm90, sm90::refusal, sm90::call, sm90::forward, sm90::backward, sm90::empty_saved_of_settings};
}

}  // namespace cyfa::ops
