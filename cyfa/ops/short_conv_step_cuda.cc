#include "cyfa/ops/short_conv_step_cuda.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cyfa/kernels/rows/conv_step_cuda.h"

namespace cyfa::ops {
namespace {

bool takes(const at::Tensor& x) { return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16; }

}  // namespace

at::Tensor short_conv_step_cuda(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                const at::Tensor& state) {
  constexpr int64_t kRows = 65535;  // of a grid
  if (!takes(x) || !takes(weight) || (bias && bias->scalar_type() != weight.scalar_type())) return {};
  if (state.scalar_type() != at::kFloat || !state.is_contiguous() || x.size(0) > kRows) return {};
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor in = x.contiguous(), w = weight.contiguous(), b = bias ? bias->contiguous() : at::Tensor(), y = at::empty_like(in);
  rows::ConvStepCuda p;
  p.narrow_rows = in.scalar_type() == at::kBFloat16;
  p.narrow_weights = w.scalar_type() == at::kBFloat16;
  p.batch = static_cast<int>(in.size(0));
  p.width = static_cast<int>(in.size(1));
  p.taps = static_cast<int>(w.size(2));
  p.x = in.const_data_ptr();
  p.weight = w.const_data_ptr();
  p.bias = b.defined() ? b.const_data_ptr() : nullptr;
  p.state = state.data_ptr<float>();
  p.y = y.data_ptr();
  C10_CUDA_CHECK(rows::conv_step_cuda(p, c10::cuda::getCurrentCUDAStream()));
  return y;
}

}  // namespace cyfa::ops
