// The GPU half of row_kernels.h; contiguous tensors, weights in fp32. A build without CUDA has stubs that take nothing.
#pragma once

#include "cyfa/ops/row_kernels.h"

namespace cyfa::ops::row_kernels {

bool norm_takes_cuda(const at::Tensor& x);
bool swiglu_takes_cuda(const at::Tensor& x);
bool conv_takes_cuda(const at::Tensor& x, int64_t taps);

Norm norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate);
NormGrads norm_backward_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, const at::Tensor& rate,
                             const at::Tensor& grad);
at::Tensor swiglu_cuda(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> swiglu_backward_cuda(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& grad);
at::Tensor conv_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                     const std::vector<int64_t>& offsets);
ConvGrads conv_backward_cuda(const at::Tensor& x, const at::Tensor& weight, bool has_bias, const at::Tensor& before,
                             const std::vector<int64_t>& offsets, const at::Tensor& grad);

}  // namespace cyfa::ops::row_kernels
