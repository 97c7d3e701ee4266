// Row-wise kernels around a mixer's operator on tensors, forward and backward: fp32 on a CPU, fp32 and bf16 on a GPU. No checks and no
// autograd: dense.h and short_conv.h are the interfaces for callers.
#pragma once

#include <torch/types.h>

#include <utility>
#include <vector>

namespace cyfa::ops::row_kernels {

// Whether there is a kernel for x [..., width].
bool norm_takes(const at::Tensor& x);
bool swiglu_takes(const at::Tensor& x);
bool conv_takes(const at::Tensor& x, int64_t taps);

// Result of norm.
struct Norm {
  at::Tensor y;
  at::Tensor rate;  // 1 / sqrt(mean(x^2) + eps), fp32
  at::Tensor sum;   // x + plus, if norm_cuda (rowwise_cuda.h) was given a plus
};
// y = x / sqrt(mean(x^2) + eps) * weight * sigmoid(gate); without the gate if it is undefined.
Norm norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate);

// Gradients of norm's arguments. gate is undefined if there was none.
struct NormGrads {
  at::Tensor x, weight, gate;
};
NormGrads norm_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, const at::Tensor& rate,
                        const at::Tensor& grad);

// silu(gate) * up; silu(gate) if up is undefined. Backward returns the gradients of gate and up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& grad);

// The short convolution of consecutive sequences x [tokens, D] with boundaries `offsets` [N + 1]. weight is [D, W]; bias may be undefined;
// before [N, W - 1, D], of x's type, holds the tokens before each sequence and may be undefined (zeros).
at::Tensor conv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                const std::vector<int64_t>& offsets);

// Gradients of conv's arguments.
struct ConvGrads {
  at::Tensor x, weight, bias, before;  // bias and before only if they were given
};
ConvGrads conv_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                        const std::vector<int64_t>& offsets, const at::Tensor& grad);

}  // namespace cyfa::ops::row_kernels
