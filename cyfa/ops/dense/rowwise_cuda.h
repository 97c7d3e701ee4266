// The GPU part of rowwise.h. Tensors are contiguous, weights fp32. Used by rowwise.cc, short_conv.cc and cyfa/engine/sm90. In a build
// without CUDA, rowwise_stub.cc supports nothing.
#pragma once

#include "cyfa/ops/dense/rowwise.h"

namespace cyfa::ops::row_kernels {

// Whether there is a CUDA kernel for these arguments.
bool norm_takes_cuda(const at::Tensor& x);
bool swiglu_takes_cuda(const at::Tensor& x);
bool conv_takes_cuda(const at::Tensor& x, int64_t taps);
bool conv_step_takes_cuda(const at::Tensor& x, const at::Tensor& state);

// The tasks (rowwise::ConvTask) of sequences with boundaries `offsets`, on the device.
at::Tensor conv_tasks(const std::vector<int64_t>& offsets, at::Device device);

// As norm; if `plus` is defined, of x + plus, which is returned in Norm::sum. Not with both plus and gate.
Norm norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate, const at::Tensor& plus = {});

// Sums to which the gradients of a norm's parameters are added, if defined, instead of being returned.
struct NormSums {
  at::Tensor weight;     // fp32 [width]
  at::Tensor gate_bias;  // fp32 [heads * width], for a gate [..., heads, width] to which a bias was added; needs `weight` too
};
// As norm_backward. grad_sum, if defined, is added to the gradient of x.
NormGrads norm_backward_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, const at::Tensor& rate,
                             const at::Tensor& grad, const at::Tensor& grad_sum = {}, const NormSums& sums = {});
at::Tensor swiglu_cuda(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> swiglu_backward_cuda(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& grad);
at::Tensor conv_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                     const std::vector<int64_t>& offsets);
ConvGrads conv_backward_cuda(const at::Tensor& x, const at::Tensor& weight, bool has_bias, const at::Tensor& before,
                             const std::vector<int64_t>& offsets, const at::Tensor& grad);
// One decode step: x [B, D], weight [D, W]. Shifts x into state [B, W - 1, D], fp32.
at::Tensor conv_step_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& state);

}  // namespace cyfa::ops::row_kernels
