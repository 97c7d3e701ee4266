// Decode step of the short convolution (rowwise_cuda.h): one thread per column and sequence. Overwrites y and shifts the state.
#include <algorithm>

#include "cyfa/kernels/rowwise/vector.cuh"

namespace cyfa::rowwise {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostRows = 65535;  // limit of gridDim.y

template <class T>
__global__ void __launch_bounds__(kThreads) conv_step_kernel(ConvStepCuda p) {
  const ConvStepInput& s = p.input[blockIdx.z];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= s.width) return;
  const int64_t past = p.taps - 1, row = blockIdx.y;
  float* state = s.state + row * past * s.width + column;
  const float* weight = s.weight + column * p.taps;
  const float now = static_cast<float>(static_cast<const T*>(s.x)[row * p.x_stride + column]);
  float sum = s.bias != nullptr ? s.bias[column] : 0.0F;
  sum = fmaf(now, weight[past], sum);
  for (int64_t w = 0; w < past; ++w) {
    const float x = state[w * s.width];
    sum = fmaf(x, weight[w], sum);
    if (w > 0) state[(w - 1) * s.width] = x;
  }
  if (past > 0) state[(past - 1) * s.width] = now;
  static_cast<T*>(s.y)[row * s.width + column] = static_cast<T>(sum);
}

}  // namespace

bool conv_step_cuda_takes(int64_t batch) { return batch <= kMostRows; }

cudaError_t conv_step_cuda(const ConvStepCuda& p, cudaStream_t stream) {
  if (!conv_step_cuda_takes(p.batch)) return cudaErrorInvalidValue;
  int64_t widest = 0;
  for (int i = 0; i < p.inputs; ++i) widest = std::max(widest, p.input[i].width);
  if (p.batch == 0 || widest == 0) return cudaSuccess;
  const dim3 blocks(blocks_of(widest, kThreads), static_cast<unsigned>(p.batch), static_cast<unsigned>(p.inputs));
  return with_type(p.type, [&](auto type) {
    conv_step_kernel<decltype(type)><<<blocks, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace cyfa::rowwise
