// One token of the short convolution of rows_cuda.h: a column of a sequence a thread.
#include "cyfa/kernels/rows/vector.cuh"

namespace cyfa::rows {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostRows = 65535;  // of a grid

template <class T>
__global__ void __launch_bounds__(kThreads) conv_step_kernel(ConvStepCuda p) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= p.width) return;
  const int64_t past = p.taps - 1, row = blockIdx.y, at = row * p.width + column;
  float* state = p.state + row * past * p.width + column;
  const float* weight = p.weight + column * p.taps;
  const float now = static_cast<float>(static_cast<const T*>(p.x)[at]);
  float sum = p.bias != nullptr ? p.bias[column] : 0.0F;
  sum = fmaf(now, weight[past], sum);
  for (int64_t w = 0; w < past; ++w) {
    const float x = state[w * p.width];
    sum = fmaf(x, weight[w], sum);
    if (w > 0) state[(w - 1) * p.width] = x;
  }
  if (past > 0) state[(past - 1) * p.width] = now;
  static_cast<T*>(p.y)[at] = static_cast<T>(sum);
}

}  // namespace

bool conv_step_cuda_takes(int64_t batch) { return batch <= kMostRows; }

cudaError_t conv_step_cuda(const ConvStepCuda& p, cudaStream_t stream) {
  if (!conv_step_cuda_takes(p.batch)) return cudaErrorInvalidValue;
  if (p.batch == 0 || p.width == 0) return cudaSuccess;
  return with_type(p.type, [&](auto type) {
    conv_step_kernel<decltype(type)><<<dim3(blocks_of(p.width, kThreads), static_cast<unsigned>(p.batch)), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace cyfa::rows
