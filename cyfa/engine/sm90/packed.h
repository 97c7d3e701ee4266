// Training on a GPU with matrices in bf16. Projections of one input are one product with the rows of their matrices one behind the other,
// and gradients of parameters are added in fp32 where the optimizer finds them: they do not pass through autograd, which would round them
// to bf16, widen them and add them up in launches of their own. Gradients of activations take autograd's way.
//
// The rest of cyfa/ops computes the same from separate parameters, on every device; builds without CUDA have nothing of this.
#pragma once

#include <torch/types.h>

#include <array>
#include <optional>

namespace cyfa::ops {

// A parameter, or matrices one behind the other, and where backward adds their gradient.
struct Summed {
  at::Tensor value;  // matrices in bf16, everything else in fp32; not recorded
  at::Tensor sum;    // fp32, of the same shape

  bool defined() const { return value.defined(); }
};

// Whether this build has it for `device`.
bool packs_on(at::Device device);
// What the parts below ask for: rows of a norm, columns of a SwiGLU, a convolution, heads of gates.
bool packs_norm(int64_t width);
bool packs_columns(int64_t width);
bool packs_conv(int64_t width, int64_t taps);

// x [..., in] times w [out, in] transposed.
at::Tensor linear(const at::Tensor& x, const Summed& w);

// silu(gate) * up of y [..., 2 F] = [gate, up].
at::Tensor swiglu_halves(const at::Tensor& y);

// The residual stream x + plus and rms_norm of it; an undefined `plus`: of x alone.
struct AddedNorm {
  at::Tensor sum, normed;
};
AddedNorm add_rms_norm(const at::Tensor& x, const at::Tensor& plus, const Summed& weight, double eps);

// rms_norm(x) * sigmoid(gate), x and gate [..., H, V]. The gate came from an addition of a bias [H * V]: its gradient is added to bias_sum.
at::Tensor gated_rms_norm(const at::Tensor& x, const Summed& weight, double eps, const at::Tensor& gate, const at::Tensor& bias_sum);

// What a mixer with three convolved streams, a low-rank output gate, a forget gate, a write gate and a clock makes of its input.
struct FlowWeights {
  Summed projection;  // rows of q, k, v, the gate's first factor, a, b, d, and zeros up to a multiple of 8
  Summed conv[3];     // [width, 1, taps]
  Summed conv_bias[3];
  Summed gate_up;                         // [H V, rank]
  at::Tensor gate_bias;                   // [H V]; its gradient: gated_rms_norm
  Summed dt_bias, A_log, b_bias, d_bias;  // [H]
  bool clock_stop_gradient = false;       // x takes no gradient from d
};
struct FlowStreams {
  at::Tensor q, k, v;                 // [B, T, width], convolved
  at::Tensor log_alpha, beta, delta;  // [B, T, H], fp32: -exp(A_log) softplus(a + dt_bias), sigmoid(b + b_bias), sigmoid(d + d_bias)
  at::Tensor gate;                    // [B, T, H V]
};
FlowStreams flow_streams(const at::Tensor& x, const FlowWeights& w, const std::optional<at::Tensor>& cu_seqlens);
// The same of one token, x [B, D], without autograd: results [B, ...]. The convolutions' pasts, [B, taps - 1, width] in fp32, move on.
// gate_bias is in bf16 here.
FlowStreams flow_step(const at::Tensor& x, const FlowWeights& w, const std::array<at::Tensor, 3>& past);

// As in cross_entropy.h.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Summed& weight, const at::Tensor& targets);

}  // namespace cyfa::ops
