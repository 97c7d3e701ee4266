#include "cyfa/kernels/rows/conv_step_cuda.h"

#include <cuda_bf16.h>

namespace cyfa::rows {
namespace {

constexpr int kThreads = 128;

__device__ float load(const void* from, bool narrow, int64_t i) {
  return narrow ? __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]) : static_cast<const float*>(from)[i];
}

// A column of a sequence a thread.
__global__ void __launch_bounds__(kThreads) conv_step_kernel(const __grid_constant__ ConvStepCuda p) {
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= p.width) return;
  const int past = p.taps - 1;
  const int64_t row = blockIdx.y;
  const int64_t at = row * p.width + column;
  float* state = p.state + row * past * p.width + column;
  const int64_t weight = static_cast<int64_t>(column) * p.taps;
  const float now = load(p.x, p.narrow_rows, at);
  float sum = p.bias != nullptr ? load(p.bias, p.narrow_weights, column) : 0.0F;
  sum = fmaf(now, load(p.weight, p.narrow_weights, weight + past), sum);
  for (int w = 0; w < past; ++w) {
    const float x = state[static_cast<int64_t>(w) * p.width];
    sum = fmaf(x, load(p.weight, p.narrow_weights, weight + w), sum);
    if (w > 0) state[static_cast<int64_t>(w - 1) * p.width] = x;
  }
  if (past > 0) state[static_cast<int64_t>(past - 1) * p.width] = now;
  if (p.narrow_rows) {
    static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16(sum);
  } else {
    static_cast<float*>(p.y)[at] = sum;
  }
}

}  // namespace

cudaError_t conv_step_cuda(const ConvStepCuda& p, cudaStream_t stream) {
  if (p.batch == 0 || p.width == 0) return cudaSuccess;
  conv_step_kernel<<<dim3((p.width + kThreads - 1) / kThreads, p.batch), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace cyfa::rows
