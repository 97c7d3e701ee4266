// Dense layers around a mixer: projections, RMSNorm, SwiGLU, gates, the gated output norm. Used by the mixers and the model.
//
// Functions for sequences ([..., T, D]) use torch's matrix products and are differentiable. The *_step functions are for decoding, [B, D]
// with one token per sequence and without autograd. On a CPU they read each weight once, in fp32 or bf16, and a row of the result has the
// same bits in any batch. On other devices they are the same as the plain functions.
#pragma once

#include <torch/types.h>

#include <optional>
#include <vector>

namespace cyfa::ops {

// The type of the activations for weights of type `weight`: fp32 for bf16 weights on a CPU, otherwise the type of the weights.
at::ScalarType activation_type(at::ScalarType weight, at::Device device);

// x [..., in] times the transpose of weight [out, in], plus bias [out]. On a CPU x may be fp32 and the weight bf16: the weight is then
// converted a few rows at a time, or, if a gradient is needed, the product is computed in bf16.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = std::nullopt);

// A projection's parameters.
struct LinearWeight {
  at::Tensor weight;               // [out, in]
  std::optional<at::Tensor> bias;  // [out]
};

// Several projections of the same x [B, in], in one parallel loop.
std::vector<at::Tensor> linear_steps(const at::Tensor& x, const std::vector<LinearWeight>& weights);
at::Tensor linear_step(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = std::nullopt);

// x / sqrt(mean(x^2) + eps) * weight over the last dimension; arithmetic in fp32 or better.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// silu(gate) * up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor silu(const at::Tensor& x);

// sigmoid(x) of gates x [..., H], in fp32 or better for any type of x.
at::Tensor sigmoid_gate(const at::Tensor& x);
// log_alpha = -exp(A_log) softplus(x + dt_bias); A_log and dt_bias are [H]. In fp32 or better for any type of x.
at::Tensor decay_gate(const at::Tensor& x, const at::Tensor& dt_bias, const at::Tensor& A_log);

// rms_norm(x) * sigmoid(gate) over the last dimension; x and gate have the same shape.
at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate);

}  // namespace cyfa::ops
