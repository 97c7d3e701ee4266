// See rowwise_cuda.h.
#include "cyfa/ops/dense/rowwise_cuda.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cyfa/kernels/rowwise/rowwise_cuda.h"

namespace cyfa::ops::row_kernels {
namespace {

using rowwise::RowType;

// The kernels are compiled for sm_90a alone: any other GPU takes ATen's operations.
bool is_hopper(at::Device device) {
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
  return major == 9;
}

bool takes_type(const at::Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) && is_hopper(x.device());
}
RowType type_of(const at::Tensor& x) { return x.scalar_type() == at::kFloat ? RowType::kFloat32 : RowType::kBFloat16; }
const void* data(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
void* written(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }
at::Tensor like(const at::Tensor& x) { return x.defined() ? at::empty_like(x) : x; }
cudaStream_t stream() { return at::cuda::getCurrentCUDAStream().stream(); }

rowwise::NormCuda norm_params(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, const at::Tensor& rate) {
  rowwise::NormCuda p;
  p.type = type_of(x);
  p.width = x.size(-1);
  p.rows = x.numel() / p.width;
  p.x = data(x);
  p.weight = weight.const_data_ptr<float>();
  p.gate = data(gate);
  p.rate = rate.data_ptr<float>();
  return p;
}

rowwise::SwigluCuda swiglu_params(const at::Tensor& gate, const at::Tensor& up) {
  rowwise::SwigluCuda p;
  p.type = type_of(gate);
  p.rows = 1;
  p.width = p.stride = gate.numel();
  p.gate = data(gate);
  p.up = data(up);
  return p;
}

rowwise::ConvCuda conv_params(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& before, const at::Tensor& tasks) {
  rowwise::ConvCuda p;
  p.type = type_of(x);
  p.taps = weight.size(1);
  p.x_stride = x.size(1);
  p.task_count = tasks.size(0);
  p.tasks = reinterpret_cast<const rowwise::ConvTask*>(tasks.const_data_ptr<int64_t>());
  p.input[0].width = x.size(1);
  p.input[0].x = data(x);
  p.input[0].weight = weight.const_data_ptr<float>();
  p.input[0].before = data(before);
  return p;
}

at::Tensor make_conv_tasks(const std::vector<int64_t>& offsets, at::Device device) {
  std::vector<rowwise::ConvTask> tasks;
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    for (int64_t begin = offsets[n]; begin < offsets[n + 1]; begin += rowwise::kConvTokens) {
      tasks.push_back({begin, std::min(offsets[n + 1], begin + rowwise::kConvTokens), offsets[n], offsets[n + 1], static_cast<int64_t>(n)});
    }
  }
  constexpr int64_t kWords = sizeof(rowwise::ConvTask) / sizeof(int64_t);
  const auto count = static_cast<int64_t>(tasks.size());
  return at::from_blob(tasks.data(), {count, kWords}, at::kLong).to(device);
}

}  // namespace

// Cached from the last call: the convolutions of q, k and v in every layer need the same tasks.
at::Tensor conv_tasks(const std::vector<int64_t>& offsets, at::Device device) {
  thread_local std::vector<int64_t> last;
  thread_local at::Tensor tasks;
  if (!tasks.defined() || tasks.device() != device || last != offsets) {
    tasks = make_conv_tasks(offsets, device);
    last = offsets;
  }
  return tasks;
}

bool norm_takes_cuda(const at::Tensor& x) { return takes_type(x) && rowwise::norm_cuda_takes(x.size(-1)); }
bool swiglu_takes_cuda(const at::Tensor& x) { return takes_type(x) && x.numel() % 8 == 0; }
bool conv_takes_cuda(const at::Tensor& x, int64_t taps) { return takes_type(x) && rowwise::conv_cuda_takes(x.size(-1), taps); }
bool conv_step_takes_cuda(const at::Tensor& x, const at::Tensor& state) {
  return takes_type(x) && rowwise::conv_step_cuda_takes(x.size(0)) && state.scalar_type() == at::kFloat && state.is_contiguous();
}

Norm norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate, const at::Tensor& plus) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Norm out = {like(x), at::empty({x.numel() / x.size(-1)}, weight.options()), like(plus)};
  rowwise::NormCuda p = norm_params(x, weight, gate, out.rate);
  p.eps = static_cast<float>(eps);
  p.plus = data(plus);
  p.sum = written(out.sum);
  p.out = written(out.y);
  C10_CUDA_CHECK(rowwise::norm_cuda(p, stream()));
  return out;
}

NormGrads norm_backward_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, const at::Tensor& rate,
                             const at::Tensor& grad, const at::Tensor& grad_sum, const NormSums& sums) {
  const c10::cuda::CUDAGuard guard(x.device());
  NormGrads out = {like(x), sums.weight.defined() ? at::Tensor() : at::empty(weight.sizes(), weight.options()), like(gate)};
  const int64_t width = x.size(-1);
  const at::Tensor parts = at::empty({rowwise::kNormParts, width}, weight.options());
  rowwise::NormCuda p = norm_params(x, weight, gate, rate);
  p.grad = data(grad);
  p.grad_sum = data(grad_sum);
  p.grad_x = written(out.x);
  p.grad_gate = written(out.gate);
  p.weight_parts = parts.data_ptr<float>();
  at::Tensor bias_parts;
  if (sums.gate_bias.defined()) {
    p.heads = sums.gate_bias.numel() / width;
    if (rowwise::norm_cuda_sums_gate_bias(width, p.heads)) {
      bias_parts = at::empty({rowwise::kNormParts, p.heads * width}, weight.options());
      p.gate_bias_parts = bias_parts.data_ptr<float>();
    }
  }
  C10_CUDA_CHECK(rowwise::norm_backward_cuda(p, stream()));
  rowwise::SumParts sum;
  sum.add = sums.weight.defined();
  sum.more(p.weight_parts, rowwise::kNormParts, width, (sum.add ? sums.weight : out.weight).data_ptr<float>(), width);
  if (bias_parts.defined()) {
    sum.more(p.gate_bias_parts, rowwise::kNormParts, p.heads * width, sums.gate_bias.data_ptr<float>(), p.heads * width);
  }
  C10_CUDA_CHECK(rowwise::sum_parts_cuda(sum, stream()));
  if (sums.gate_bias.defined() && !bias_parts.defined()) {
    sums.gate_bias.add_(out.gate.view({-1, sums.gate_bias.numel()}).sum(0, false, at::kFloat));
  }
  return out;
}

at::Tensor swiglu_cuda(const at::Tensor& gate, const at::Tensor& up) {
  const c10::cuda::CUDAGuard guard(gate.device());
  const at::Tensor out = like(gate);
  rowwise::SwigluCuda p = swiglu_params(gate, up);
  p.out = written(out);
  C10_CUDA_CHECK(rowwise::swiglu_cuda(p, stream()));
  return out;
}

std::pair<at::Tensor, at::Tensor> swiglu_backward_cuda(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& grad) {
  const c10::cuda::CUDAGuard guard(gate.device());
  std::pair<at::Tensor, at::Tensor> out = {like(gate), like(up)};
  rowwise::SwigluCuda p = swiglu_params(gate, up);
  p.grad = data(grad);
  p.grad_gate = written(out.first);
  p.grad_up = written(out.second);
  C10_CUDA_CHECK(rowwise::swiglu_backward_cuda(p, stream()));
  return out;
}

at::Tensor conv_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                     const std::vector<int64_t>& offsets) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor y = like(x), tasks = conv_tasks(offsets, x.device());
  rowwise::ConvCuda p = conv_params(x, weight, before, tasks);
  p.input[0].bias = static_cast<const float*>(data(bias));
  p.input[0].y = written(y);
  C10_CUDA_CHECK(rowwise::conv_cuda(p, stream()));
  return y;
}

ConvGrads conv_backward_cuda(const at::Tensor& x, const at::Tensor& weight, bool has_bias, const at::Tensor& before,
                             const std::vector<int64_t>& offsets, const at::Tensor& grad) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor tasks = conv_tasks(offsets, x.device());
  const int64_t D = x.size(1), W = weight.size(1);
  ConvGrads out;
  out.x = like(x);
  out.weight = at::empty_like(weight);
  if (has_bias) out.bias = at::empty({D}, weight.options());
  rowwise::ConvCuda p = conv_params(x, weight, before, tasks);
  p.input[0].grad = data(grad);
  p.input[0].grad_x = written(out.x);
  p.bias_parts = has_bias;
  const at::Tensor parts = at::empty({tasks.size(0), rowwise::conv_parts_columns(p)}, weight.options());
  p.parts = parts.data_ptr<float>();
  C10_CUDA_CHECK(rowwise::conv_backward_cuda(p, stream()));
  rowwise::SumParts sum;
  sum.more(p.parts, tasks.size(0), parts.size(1), out.weight.data_ptr<float>(), D * W);
  if (has_bias) sum.more(p.parts + D * W, tasks.size(0), parts.size(1), out.bias.data_ptr<float>(), D);
  C10_CUDA_CHECK(rowwise::sum_parts_cuda(sum, stream()));
  if (before.defined()) {  // few rows, and rarely needed
    out.before = at::zeros_like(before);
    for (size_t n = 0; n + 1 < offsets.size(); ++n) {
      const int64_t tokens = offsets[n + 1] - offsets[n];
      for (int64_t i = 0; i < W - 1; ++i) {
        for (int64_t t = 0; t <= i && t < tokens; ++t) {
          out.before.select(0, static_cast<int64_t>(n))
              .select(0, i)
              .addcmul_(grad.select(0, offsets[n] + t), weight.select(1, i - t).to(grad.scalar_type()));
        }
      }
    }
  }
  return out;
}

at::Tensor conv_step_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& state) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor y = like(x);
  rowwise::ConvStepCuda p;
  p.type = type_of(x);
  p.batch = x.size(0);
  p.taps = weight.size(1);
  p.x_stride = x.size(1);
  p.input[0] = {x.size(1), data(x), weight.const_data_ptr<float>(), static_cast<const float*>(data(bias)), state.data_ptr<float>(),
                written(y)};
  C10_CUDA_CHECK(rowwise::conv_step_cuda(p, stream()));
  return y;
}

}  // namespace cyfa::ops::row_kernels
