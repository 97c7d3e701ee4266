// Decode step of the short convolution, and the state that a forward leaves for it (rowwise_cuda.h): one thread per column and sequence.
// The step overwrites y and shifts the state.
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

template <class T>
__global__ void __launch_bounds__(kThreads) conv_tails_kernel(ConvTailsCuda p) {
  const ConvTail& s = p.input[blockIdx.z];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= s.width) return;
  const int64_t past = p.taps - 1;
  for (int64_t n = blockIdx.y; n < p.sequences; n += gridDim.y) {
    const int64_t first = p.borders[n], end = p.borders[n + 1];
    for (int64_t i = 0; i < past; ++i) {
      const int64_t row = end - past + i;
      float x = 0.0F;
      if (row >= first) {
        x = static_cast<float>(static_cast<const T*>(s.x)[row * p.x_stride + column]);
      } else if (s.before != nullptr) {
        x = s.before[(n * past + past + row - first) * s.width + column];
      }
      s.to[(n * past + i) * s.width + column] = x;
    }
  }
}

template <class Inputs>
int64_t widest(const Inputs& p) {
  int64_t width = 0;
  for (int i = 0; i < p.inputs; ++i) width = std::max(width, p.input[i].width);
  return width;
}

}  // namespace

bool conv_step_cuda_takes(int64_t batch) { return batch <= kMostRows; }

cudaError_t conv_step_cuda(const ConvStepCuda& p, cudaStream_t stream) {
  if (!conv_step_cuda_takes(p.batch)) return cudaErrorInvalidValue;
  if (p.batch == 0 || widest(p) == 0) return cudaSuccess;
  const dim3 blocks(blocks_of(widest(p), kThreads), static_cast<unsigned>(p.batch), static_cast<unsigned>(p.inputs));
  return with_type(p.type, [&](auto type) {
    conv_step_kernel<decltype(type)><<<blocks, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t conv_tails_cuda(const ConvTailsCuda& p, cudaStream_t stream) {
  if (p.inputs < 1 || p.inputs > ConvCuda::kInputs || p.taps < 1) return cudaErrorInvalidValue;
  if (p.sequences == 0 || p.taps == 1 || widest(p) == 0) return cudaSuccess;
  const auto rows = static_cast<unsigned>(std::min(p.sequences, kMostRows));
  const dim3 blocks(blocks_of(widest(p), kThreads), rows, static_cast<unsigned>(p.inputs));
  return with_type(p.type, [&](auto type) {
    conv_tails_kernel<decltype(type)><<<blocks, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace cyfa::rowwise
