// short_conv_step by one launch (cyfa/kernels/rows/conv_step_cuda.h); only in a CUDA build.
#pragma once

#include <torch/types.h>

#include <optional>

namespace cyfa::ops {

// An undefined tensor where the kernel does not take such arguments.
at::Tensor short_conv_step_cuda(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                const at::Tensor& state);

}  // namespace cyfa::ops
