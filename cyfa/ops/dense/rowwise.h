// Kernels of the parts around a mixer's operator, forward and backward, on tensors: fp32 on a CPU, fp32 and bf16 on a GPU. Without checks
// and without autograd: cyfa/ops/dense/dense.h and cyfa/ops/dense/short_conv.h are what callers use.
#pragma once

#include <torch/types.h>

#include <utility>
#include <vector>

namespace cyfa::ops::row_kernels {

// Whether there are kernels for x [..., width].
bool norm_takes(const at::Tensor& x);
bool swiglu_takes(const at::Tensor& x);
bool conv_takes(const at::Tensor& x, int64_t taps);

// x / sqrt(mean(x^2) + eps) * weight * sigmoid(gate); an undefined gate: without it.
struct Norm {
  at::Tensor y;
  at::Tensor rate;  // 1 / sqrt(mean(x^2) + eps), fp32
  at::Tensor sum;   // x + plus, where a GPU's kernel was given the latter (row_kernels_cuda.h)
};
Norm norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate);

struct NormGrads {
  at::Tensor x, weight, gate;
};
NormGrads norm_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, const at::Tensor& rate,
                        const at::Tensor& grad);

// silu(gate) * up; an undefined up: silu(gate).
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& grad);

// The convolution of sequences that stand one behind the other in x [tokens, D], cut at `offsets`. weight [D, W]; an undefined bias: none;
// before [N, W - 1, D] of x's type, undefined: zeros.
at::Tensor conv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                const std::vector<int64_t>& offsets);

struct ConvGrads {
  at::Tensor x, weight, bias, before;  // bias and before where they were given
};
ConvGrads conv_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                        const std::vector<int64_t>& offsets, const at::Tensor& grad);

}  // namespace cyfa::ops::row_kernels
