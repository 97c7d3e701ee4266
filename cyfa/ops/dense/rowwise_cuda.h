// The GPU half of row_kernels.h; contiguous tensors, weights in fp32. A build without CUDA has stubs that take nothing.
#pragma once

#include "cyfa/ops/dense/rowwise.h"

namespace cyfa::ops::row_kernels {

bool norm_takes_cuda(const at::Tensor& x);
bool swiglu_takes_cuda(const at::Tensor& x);
bool conv_takes_cuda(const at::Tensor& x, int64_t taps);
bool conv_step_takes_cuda(const at::Tensor& x, const at::Tensor& state);

// The convolution's tasks (rowwise::ConvTask) for sequences cut at `offsets`, on the device.
at::Tensor conv_tasks(const std::vector<int64_t>& offsets, at::Device device);

// `plus`, where defined, is added to x first.
Norm norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate, const at::Tensor& plus = {});

// What the gradients of a norm's parameters are added to, where defined, instead of being returned.
struct NormSums {
  at::Tensor weight;     // fp32 [width]
  at::Tensor gate_bias;  // fp32 [heads * width], for a gate [..., heads, width] that a bias was added to; with `weight` alone
};
// grad_sum, where defined, is added to the gradient of x.
NormGrads norm_backward_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, const at::Tensor& rate,
                             const at::Tensor& grad, const at::Tensor& grad_sum = {}, const NormSums& sums = {});
at::Tensor swiglu_cuda(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> swiglu_backward_cuda(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& grad);
at::Tensor conv_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                     const std::vector<int64_t>& offsets);
ConvGrads conv_backward_cuda(const at::Tensor& x, const at::Tensor& weight, bool has_bias, const at::Tensor& before,
                             const std::vector<int64_t>& offsets, const at::Tensor& grad);
// One token of each sequence, x [B, D] and weight [D, W]; state [B, W - 1, D] in fp32 moves on by it.
at::Tensor conv_step_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& state);

}  // namespace cyfa::ops::row_kernels
