// The plain parts around a mixer: projections, RMSNorm, SwiGLU, the gated norm of an output.
//
// Sequences ([..., T, D]) take torch's own products and are differentiable. The *_step forms are for decoding, [B, D] with one token a
// sequence and without autograd: on a CPU they read each weight once, in fp32 or bf16, and a row of the result has the same bits
// whatever else is in the batch. Elsewhere they are the plain forms.
#pragma once

#include <torch/types.h>

#include <optional>
#include <vector>

namespace cyfa::ops {

// The type in which activations run for weights of type `weight`: fp32 on a CPU for bf16 weights, otherwise the weights' own.
at::ScalarType activation_type(at::ScalarType weight, at::Device device);

// x [..., in] times weight [out, in] transposed, plus bias [out]. On a CPU x may be fp32 and the weight bf16: the weight is
// then widened a few rows at a time, or, where a gradient is asked for, the product is taken in bf16.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = std::nullopt);

struct LinearWeight {
  at::Tensor weight;               // [out, in]
  std::optional<at::Tensor> bias;  // [out]
};

// Several projections of the same x [B, in], in one sweep.
std::vector<at::Tensor> linear_steps(const at::Tensor& x, const std::vector<LinearWeight>& weights);
at::Tensor linear_step(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = std::nullopt);

// x / sqrt(mean(x^2) + eps) * weight over the last dimension, in fp32 or better.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// silu(gate) * up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor silu(const at::Tensor& x);

// Gates of x [..., H], in fp32 or better whatever x comes in.
at::Tensor sigmoid_gate(const at::Tensor& x);
// log_alpha = -exp(A_log) softplus(x + dt_bias), both [H].
at::Tensor decay_gate(const at::Tensor& x, const at::Tensor& dt_bias, const at::Tensor& A_log);

// rms_norm(x) * sigmoid(gate) over the last dimension; x and gate of one shape.
at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate);

}  // namespace cyfa::ops
