// The gates of a mixer and the cross entropy of the language model head (rowwise_cuda.h).
#include <cfloat>

#include "cyfa/kernels/rowwise/vector.cuh"

namespace cyfa::rowwise {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float number(float x) { return x; }
__device__ __forceinline__ float number(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__global__ void __launch_bounds__(kThreads) gates_kernel(GatesCuda p) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= p.rows * p.heads) return;
  const int64_t row = at / p.heads, h = at % p.heads;
  const T* x = static_cast<const T*>(p.x) + row * p.stride + h;
  p.log_alpha[at] = -expf(p.A_log[h]) * softplus(number(x[0]) + p.dt_bias[h]);
  p.beta[at] = exact_sigmoid(number(x[p.heads]) + p.b_bias[h]);
  p.delta[at] = exact_sigmoid(number(x[2 * p.heads]) + p.d_bias[h]);
}

// kGateParts blocks take equal ranges of rows. A thread always works on the same head, so its sums over rows stay in registers.
template <class T>
__global__ void __launch_bounds__(kThreads) gates_backward_kernel(GatesCuda p) {
  __shared__ float shared[4][kThreads];
  const int heads = static_cast<int>(p.heads), used = kThreads / heads * heads;
  const int64_t begin = p.rows * blockIdx.x / kGateParts, end = p.rows * (blockIdx.x + 1) / kGateParts;
  const int h = static_cast<int>(threadIdx.x) % heads;
  float sums[4] = {};
  if (static_cast<int>(threadIdx.x) < used) {
    const float dt_bias = p.dt_bias[h], rate = -expf(p.A_log[h]), b_bias = p.b_bias[h], d_bias = p.d_bias[h];
    for (int64_t row = begin + threadIdx.x / heads; row < end; row += used / heads) {
      const T* x = static_cast<const T*>(p.x) + row * p.stride + h;
      T* to = static_cast<T*>(p.grad_x) + row * p.stride + h;
      const int64_t at = row * heads + h;
      const float a = number(x[0]) + dt_bias, beta = exact_sigmoid(number(x[heads]) + b_bias),
                  delta = exact_sigmoid(number(x[2 * heads]) + d_bias);
      const float grad_log_alpha = p.grad_log_alpha == nullptr ? 0.0F : p.grad_log_alpha[at];
      const float into_a = grad_log_alpha * rate * exact_sigmoid(a);
      const float into_b = p.grad_beta == nullptr ? 0.0F : p.grad_beta[at] * beta * (1.0F - beta);
      const float into_d = p.grad_delta == nullptr ? 0.0F : p.grad_delta[at] * delta * (1.0F - delta);
      to[0] = static_cast<T>(into_a);
      to[heads] = static_cast<T>(into_b);
      to[2 * heads] = static_cast<T>(into_d);
      for (int64_t i = 3 * heads; i < 3 * heads + p.fill - h; i += heads) to[i] = static_cast<T>(0.0F);
      sums[0] += into_a;
      sums[1] += grad_log_alpha * rate * softplus(a);
      sums[2] += into_b;
      sums[3] += into_d;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) shared[i][threadIdx.x] = sums[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 4 * heads; i += kThreads) {
    float sum = 0;
    for (int t = i % heads; t < used; t += heads) sum += shared[i / heads][t];
    p.parts[blockIdx.x * 4 * p.heads + i] = sum;
  }
}

// One block per row. A first sweep finds the largest logit and the sum of exponentials (online softmax); a second one, which reads from the
// cache, writes the gradient.
constexpr int kLossThreads = 512;
constexpr int kLossWarps = kLossThreads / 32;

// A running maximum and sum of exp(x - most), as in online softmax; add() merges two of them.
struct Exponents {
  float most = -FLT_MAX, sum = 0;

  __device__ __forceinline__ void add(float other_most, float other_sum) {
    const float top = fmaxf(most, other_most);
    sum = sum * __expf(most - top) + other_sum * __expf(other_most - top);
    most = top;
  }
};

template <class T>
__global__ void __launch_bounds__(kLossThreads) loss_kernel(LossCuda p) {
  __shared__ Exponents warps[kLossWarps];
  const int64_t row = blockIdx.x, target = p.targets[row];
  const int vectors = static_cast<int>(p.width / kVector);
  T* logits = static_cast<T*>(p.logits) + row * p.width;
  const bool counts = target != p.ignore;
  if (!counts) {
    if (threadIdx.x == 0) p.loss[row] = 0;
    for (int i = threadIdx.x; p.share != nullptr && i < vectors; i += kLossThreads) store(logits, i, Eight{});
    return;
  }
  Exponents seen;
#pragma unroll 4
  for (int i = threadIdx.x; i < vectors; i += kLossThreads) {
    const Eight x = load(logits, i);
    float top = -FLT_MAX;
#pragma unroll
    for (int e = 0; e < kVector; ++e) top = fmaxf(top, x.at[e]);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum += __expf(x.at[e] - top);
    seen.add(top, sum);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float most = __shfl_xor_sync(0xffffffffU, seen.most, distance), sum = __shfl_xor_sync(0xffffffffU, seen.sum, distance);
    seen.add(most, sum);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = seen;
  __syncthreads();
  seen = warps[0];
  for (int w = 1; w < kLossWarps; ++w) seen.add(warps[w].most, warps[w].sum);
  if (threadIdx.x == 0) p.loss[row] = target >= 0 && target < p.width ? seen.most + logf(seen.sum) - number(logits[target]) : nanf("");
  if (p.share == nullptr) return;
  __syncthreads();  // the target's logit has been read before it is overwritten
  const float share = *p.share, scale = share / seen.sum;
#pragma unroll 4
  for (int i = threadIdx.x; i < vectors; i += kLossThreads) {
    Eight x = load(logits, i);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      x.at[e] = __expf(x.at[e] - seen.most) * scale;
      if (static_cast<int64_t>(i) * kVector + e == target) x.at[e] -= share;
    }
    store(logits, i, x);
  }
}

}  // namespace

cudaError_t gates_cuda(const GatesCuda& p, cudaStream_t stream) {
  if (p.rows * p.heads == 0) return cudaSuccess;
  return with_type(p.type, [&](auto type) {
    gates_kernel<decltype(type)><<<blocks_of(p.rows * p.heads, kThreads), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t gates_backward_cuda(const GatesCuda& p, cudaStream_t stream) {
  if (p.heads < 1 || p.heads > kMaxGateHeads) return cudaErrorInvalidValue;
  return with_type(p.type, [&](auto type) {
    gates_backward_kernel<decltype(type)><<<kGateParts, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t loss_cuda(const LossCuda& p, cudaStream_t stream) {
  if (p.width < 1 || p.width % kVector != 0) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  return with_type(p.type, [&](auto type) {
    loss_kernel<decltype(type)><<<static_cast<unsigned>(p.rows), kLossThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace cyfa::rowwise
