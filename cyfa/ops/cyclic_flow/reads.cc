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

// The Dirichlet kernel P(age) e_0 by its frequencies: row r of a write of age clock_t - clock_i is the real part of
//   sum_j conj(wave_t,j) wave_i,j rows_j,r,   wave_j = exp(i w_j clock),   w_j = 2 pi j / m,
// so that sums over writes need no table of every pair of tokens and every row.
struct Waves {
  Waves(const at::Tensor& clock, int64_t m) {
    const at::TensorOptions real = clock.options();
    const auto rows_of_ring = static_cast<double>(m);
    const at::Tensor w = at::arange((m + 1) / 2, real) * (2 * std::numbers::pi / rows_of_ring);
    const at::Tensor phase = clock.remainder(rows_of_ring).unsqueeze(-1) * w;
    wave = at::polar(at::ones_like(phase), phase);
    const at::Tensor weight = at::full_like(w, 2 / rows_of_ring).index_fill(0, at::zeros({1}, real.dtype(at::kLong)), 1 / rows_of_ring);
    const at::Tensor angle = w.unsqueeze(1) * at::arange(m, real);
    rows = at::polar(weight.unsqueeze(1).expand_as(angle).contiguous(), angle);
  }

  at::Tensor wave;  // [..., T, (m + 1) / 2] complex
  at::Tensor rows;  // [(m + 1) / 2, m] complex
};

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
  const Waves waves(clock, m);
  const auto complex = [](const at::Tensor& x) { return x.to(at::kComplexDouble); };
  const at::Tensor sums = at::matmul(complex(held * at::matmul(q, k.transpose(2, 3))), waves.wave) * waves.wave.conj();
  const at::Tensor scores = at::real(at::matmul(sums, waves.rows));
  const at::Tensor slots = at::matmul(at::softmax(at::matmul(scores, R.transpose(1, 2)), -1), R);
  const at::Tensor turned = at::matmul(complex(slots), waves.rows.t()) * waves.wave.conj();
  const at::Tensor writes = held * at::real(at::matmul(turned, waves.wave.transpose(2, 3)));
  return {clock.transpose(1, 2), in.beta.to(at::kDouble), slots.transpose(1, 2), writes.transpose(1, 2)};
}

}  // namespace cyfa::ops
