#include "cyfa/ops/cyclic_flow/reads.h"

#include <cmath>
#include <numbers>

#include "cyfa/ops/common/check.h"

namespace cyfa::ops {
namespace {

at::Tensor by_head(const at::Tensor& x) { return x.to(at::kDouble).transpose(1, 2); }  // [B, T, H, ...] to [B, H, T, ...]

at::Tensor normed(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps) {
  return weight ? x * at::rsqrt(x.square().mean(-1, true) + eps) * weight->to(at::kDouble) : x;
}

// P(age) e_0 for ages [...]: [..., m], the Dirichlet kernel around the row `age`.
at::Tensor rows_of(const at::Tensor& age, int64_t m) {
  const at::TensorOptions real(at::kDouble);
  const at::Tensor distance = at::arange(m, real) - age.remainder(static_cast<double>(m)).unsqueeze(-1);
  at::Tensor sum = at::ones_like(distance);
  for (int64_t j = 1; j <= (m - 1) / 2; ++j)
    sum += 2 * at::cos(distance * (2 * std::numbers::pi * static_cast<double>(j) / static_cast<double>(m)));
  return sum / static_cast<double>(m);
}

}  // namespace

CyclicFlowReads cyclic_flow_reads(const CyclicFlowInputs& in, const CyclicFlowOptions& options) {
  const at::NoGradGuard no_grad;
  if (in.initial_state || in.cu_seqlens) {
    throw ArgumentError("cyclic_flow_reads: initial_state or cu_seqlens is set; wanted whole sequences from an empty state");
  }
  const int64_t m = in.readout.size(-1);
  const at::Tensor R = in.readout.to(at::kDouble);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(in.q.size(-1))));
  const at::Tensor q = normed(by_head(in.q), in.q_norm_weight, options.norm_eps) * scale;
  const at::Tensor k = normed(by_head(in.k), in.k_norm_weight, options.norm_eps);
  const at::Tensor clock = by_head(in.delta).cumsum(2);
  const at::Tensor decay = by_head(in.log_alpha).clamp_min(-1e4).cumsum(2);  // exp(-1e4) is 0

  // held[t, i]: what is left at token t of the strength of write i.
  const at::Tensor held = ((decay.unsqueeze(3) - decay.unsqueeze(2)).clamp_max(0).exp() * by_head(in.beta).unsqueeze(2)).tril();
  const at::Tensor rows = rows_of(clock.unsqueeze(3) - clock.unsqueeze(2), m);  // [B, H, T, T, m]
  const at::Tensor scores = at::matmul((held * at::matmul(q, k.transpose(2, 3))).unsqueeze(3), rows).squeeze(3);
  const at::Tensor slots = at::matmul(at::softmax(at::matmul(scores, R.transpose(1, 2)), -1), R);
  const at::Tensor writes = held * at::matmul(rows, slots.unsqueeze(4)).squeeze(4);
  return {clock.transpose(1, 2), in.beta.to(at::kDouble), slots.transpose(1, 2), writes.transpose(1, 2)};
}

}  // namespace cyfa::ops
