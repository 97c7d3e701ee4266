// The training path of the sm90 engine, with matrices in bf16: operations on fused weights. Gradients of weights are summed in fp32 where
// the optimizer finds them, by the products themselves; they do not pass through autograd, which would round them to bf16, convert them
// back and add them up in launches of their own. Gradients of activations take autograd's way.
#pragma once

#include <optional>

#include "cyfa/engine/sm90/fused_weights.h"

namespace cyfa::fused {

// x [..., in] times w [out, in] transposed.
at::Tensor linear(const at::Tensor& x, const Accumulated& w);

// silu(gate) * up of y [..., 2 F] = [gate, up].
at::Tensor swiglu_halves(const at::Tensor& y);

// The residual stream x + plus and rms_norm of it; an undefined `plus`: of x alone.
struct AddedNorm {
  at::Tensor sum, normed;
};
AddedNorm add_rms_norm(const at::Tensor& x, const at::Tensor& plus, const Accumulated& weight, double eps);

// rms_norm(x) * sigmoid(gate), x and gate [..., H, V]. The gate came from an addition of a bias [H * V]: its gradient is added to
// bias_grad.
at::Tensor gated_rms_norm(const at::Tensor& x, const Accumulated& weight, double eps, const at::Tensor& gate, const at::Tensor& bias_grad);

// What a CyFA mixer makes of its input, x [B, T, D].
struct FlowProjections {
  at::Tensor q, k, v;                 // [B, T, width], convolved
  at::Tensor log_alpha, beta, delta;  // [B, T, H], fp32: -exp(A_log) softplus(a + dt_bias), sigmoid(b + b_bias), sigmoid(d + d_bias)
  at::Tensor gate;                    // [B, T, H V]
};
FlowProjections flow_projections(const at::Tensor& x, const FlowWeights& w, const std::optional<at::Tensor>& cu_seqlens);
// The same of one token, x [B, D], without autograd: results [B, ...]. The convolutions' tails, [B, taps - 1, width] in fp32, move on.
FlowProjections flow_projections_step(const at::Tensor& x, const FlowWeights& w, const std::array<at::Tensor, 3>& tails);

// As in cyfa/ops/dense/cross_entropy.h.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Accumulated& weight, const at::Tensor& targets);

}  // namespace cyfa::fused
