// See rows_cuda.h. All of these move memory and little else: eight elements a thread and load, everything read once, fp32 between.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "cyfa/kernels/rows/rows_cuda.h"

namespace cyfa::rows {
namespace {

constexpr int kVector = 8;  // elements that a thread takes at once
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxVectors = 8;  // of a lane, in a row of a norm: 2,048 elements
constexpr float kSmallest = 1.17549435e-38F;

struct Eight {
  float at[kVector];
};

__device__ __forceinline__ Eight load(const float* from, int64_t index) {
  const float4 a = reinterpret_cast<const float4*>(from)[2 * index], b = reinterpret_cast<const float4*>(from)[2 * index + 1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

__device__ __forceinline__ Eight load(const __nv_bfloat16* from, int64_t index) {
  const uint4 packed = reinterpret_cast<const uint4*>(from)[index];
  const unsigned int words[4] = {packed.x, packed.y, packed.z, packed.w};
  Eight out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out.at[2 * i] = __uint_as_float(words[i] << 16);
    out.at[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
  return out;
}

__device__ __forceinline__ void store(float* to, int64_t index, const Eight& x) {
  reinterpret_cast<float4*>(to)[2 * index] = {x.at[0], x.at[1], x.at[2], x.at[3]};
  reinterpret_cast<float4*>(to)[2 * index + 1] = {x.at[4], x.at[5], x.at[6], x.at[7]};
}

__device__ __forceinline__ void store(__nv_bfloat16* to, int64_t index, const Eight& x) {
  unsigned int words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x.at[2 * i], x.at[2 * i + 1]);
    words[i] = *reinterpret_cast<const unsigned int*>(&pair);
  }
  reinterpret_cast<uint4*>(to)[index] = {words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffU, x, distance);
  return x;
}

// A warp takes a row; lane l holds the vectors l, l + 32, ...
template <class T, int kVectors, bool kGated>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormCuda p) {
  const int lane = threadIdx.x % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= p.rows) return;
  const int vectors = static_cast<int>(p.width / kVector);
  const T* x = static_cast<const T*>(p.x) + row * p.width;
  Eight rows[kVectors];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (lane + 32 * i >= vectors) break;
    rows[i] = load(x, lane + 32 * i);
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum += rows[i].at[e] * rows[i].at[e];
  }
  const float mean = warp_sum(sum) / static_cast<float>(p.width) + p.eps;
  const float rate = rsqrtf(fmaxf(mean, kSmallest));
  if (lane == 0) p.rate[row] = rate;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = lane + 32 * i;
    if (at >= vectors) break;
    const Eight weight = load(p.weight, at);
#pragma unroll
    for (int e = 0; e < kVector; ++e) rows[i].at[e] *= rate * weight.at[e];
    if constexpr (kGated) {
      const Eight gate = load(static_cast<const T*>(p.gate) + row * p.width, at);
#pragma unroll
      for (int e = 0; e < kVector; ++e) rows[i].at[e] *= sigmoid(gate.at[e]);
    }
    store(static_cast<T*>(p.out) + row * p.width, at, rows[i]);
  }
}

// kNormParts blocks take equal runs of rows, a warp every eighth row of a run; the weight's sums stay in registers until the run's end.
template <class T, int kVectors, bool kGated>
__global__ void __launch_bounds__(kThreads) norm_backward_kernel(NormCuda p) {
  extern __shared__ float parts[];  // [width] for each warp
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int vectors = static_cast<int>(p.width / kVector);
  const int64_t begin = p.rows * blockIdx.x / kNormParts, end = p.rows * (blockIdx.x + 1) / kNormParts;
  Eight sums[kVectors] = {};
  for (int64_t row = begin + warp; row < end; row += kWarps) {
    const int64_t offset = row * p.width;
    const float rate = p.rate[row];
    Eight n[kVectors], through[kVectors];
    float along = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = lane + 32 * i;
      if (at >= vectors) break;
      n[i] = load(static_cast<const T*>(p.x) + offset, at);
      through[i] = load(static_cast<const T*>(p.grad) + offset, at);
      const Eight weight = load(p.weight, at);
      Eight gate;
      if constexpr (kGated) gate = load(static_cast<const T*>(p.gate) + offset, at);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        n[i].at[e] *= rate;
        if constexpr (kGated) {
          const float s = sigmoid(gate.at[e]);
          through[i].at[e] *= s;
          gate.at[e] = n[i].at[e] * through[i].at[e] * weight.at[e] * (1.0F - s);
        }
        sums[i].at[e] += n[i].at[e] * through[i].at[e];
        through[i].at[e] *= weight.at[e];
        along += n[i].at[e] * through[i].at[e];
      }
      if constexpr (kGated) store(static_cast<T*>(p.grad_gate) + offset, at, gate);
    }
    along = warp_sum(along) / static_cast<float>(p.width);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = lane + 32 * i;
      if (at >= vectors) break;
#pragma unroll
      for (int e = 0; e < kVector; ++e) through[i].at[e] = (through[i].at[e] - n[i].at[e] * along) * rate;
      store(static_cast<T*>(p.grad_x) + offset, at, through[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (lane + 32 * i < vectors) store(parts + warp * p.width, lane + 32 * i, sums[i]);
  }
  __syncthreads();
  for (int64_t column = threadIdx.x; column < p.width; column += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += parts[w * p.width + column];
    p.weight_parts[blockIdx.x * p.width + column] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(int64_t vectors, const T* gate, const T* up, T* out) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= vectors) return;
  Eight g = load(gate, at);
#pragma unroll
  for (int e = 0; e < kVector; ++e) g.at[e] *= sigmoid(g.at[e]);
  if (up != nullptr) {
    const Eight u = load(up, at);
#pragma unroll
    for (int e = 0; e < kVector; ++e) g.at[e] *= u.at[e];
  }
  store(out, at, g);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(int64_t vectors, const T* gate, const T* up, const T* grad, T* grad_gate, T* grad_up) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= vectors) return;
  Eight g = load(gate, at);
  Eight d = load(grad, at);
  Eight u{};
  if (up != nullptr) u = load(up, at);
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const float s = sigmoid(g.at[e]);
    const float into_up = d.at[e] * g.at[e] * s;
    const float slope = d.at[e] * s * (1.0F + g.at[e] * (1.0F - s));
    g.at[e] = up == nullptr ? slope : slope * u.at[e];
    u.at[e] = into_up;
  }
  store(grad_gate, at, g);
  if (up != nullptr) store(grad_up, at, u);
}

// A thread owns eight columns and walks through the tokens of a task. Row t of the sequence, or what stands before it.
template <class T>
__device__ __forceinline__ Eight conv_row(const ConvCuda& p, const ConvTask& task, int64_t row, int64_t vector) {
  const int64_t vectors = p.width / kVector;
  if (row >= task.first) return load(static_cast<const T*>(p.x), row * vectors + vector);
  if (p.before == nullptr) return Eight{};
  const int64_t past = p.taps - 1;
  return load(static_cast<const T*>(p.before), (task.sequence * past + past + row - task.first) * vectors + vector);
}

template <int kTaps>
__device__ __forceinline__ void load_taps(const ConvCuda& p, int64_t vector, Eight (&tap)[kTaps]) {
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
#pragma unroll
    for (int w = 0; w < kTaps; ++w) tap[w].at[e] = p.weight[(vector * kVector + e) * kTaps + w];
  }
}

template <class T, int kTaps>
__global__ void __launch_bounds__(128) conv_kernel(ConvCuda p) {
  const int64_t vectors = p.width / kVector;
  const int64_t vector = static_cast<int64_t>(blockIdx.y) * 128 + threadIdx.x;
  if (vector >= vectors) return;
  const ConvTask task = p.tasks[blockIdx.x];
  Eight tap[kTaps], window[kTaps];
  load_taps<kTaps>(p, vector, tap);
  Eight bias{};
  if (p.bias != nullptr) bias = load(p.bias, vector);
#pragma unroll
  for (int w = 1; w < kTaps; ++w) window[w] = conv_row<T>(p, task, task.begin - kTaps + w, vector);
#pragma unroll 4
  for (int64_t t = task.begin; t < task.end; ++t) {
#pragma unroll
    for (int w = 0; w + 1 < kTaps; ++w) window[w] = window[w + 1];
    window[kTaps - 1] = load(static_cast<const T*>(p.x), t * vectors + vector);
    Eight y = bias;
#pragma unroll
    for (int w = kTaps - 1; w >= 0; --w) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) y.at[e] += window[w].at[e] * tap[w].at[e];
    }
    store(static_cast<T*>(p.y), t * vectors + vector, y);
  }
}

// Row s of x reaches the outputs s .. s + taps - 1 of its sequence. The task walks outputs t: their gradients with the rows before them
// give the taps' gradients, and row t - taps + 1 is complete once output t has been seen. So it runs taps - 1 outputs past its end.
template <class T, int kTaps>
__global__ void __launch_bounds__(128) conv_backward_kernel(ConvCuda p) {
  const int64_t vectors = p.width / kVector;
  const int64_t vector = static_cast<int64_t>(blockIdx.y) * 128 + threadIdx.x;
  if (vector >= vectors) return;
  const ConvTask task = p.tasks[blockIdx.x];
  constexpr int kPast = kTaps - 1;
  Eight tap[kTaps], window[kTaps], sums[kTaps] = {}, pending[kTaps] = {}, bias_sum{};
  load_taps<kTaps>(p, vector, tap);
#pragma unroll
  for (int w = 1; w < kTaps; ++w) window[w] = conv_row<T>(p, task, task.begin - kTaps + w, vector);
  const int64_t stop = task.end + kPast;
#pragma unroll 2
  for (int64_t t = task.begin; t < stop; ++t) {
    Eight g{};
    if (t < task.last) g = load(static_cast<const T*>(p.grad), t * vectors + vector);
    if (t < task.end) {  // the taps' gradients count each output once
#pragma unroll
      for (int w = 0; w + 1 < kTaps; ++w) window[w] = window[w + 1];
      window[kTaps - 1] = load(static_cast<const T*>(p.x), t * vectors + vector);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
#pragma unroll
        for (int w = 0; w < kTaps; ++w) sums[w].at[e] += g.at[e] * window[w].at[e];
        bias_sum.at[e] += g.at[e];
      }
    }
    // pending[w]: the gradient so far of row t - w.
#pragma unroll
    for (int w = kTaps - 1; w > 0; --w) pending[w] = pending[w - 1];
    pending[0] = Eight{};
#pragma unroll
    for (int w = 0; w < kTaps; ++w) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) pending[w].at[e] += g.at[e] * tap[kPast - w].at[e];
    }
    if (t - kPast >= task.begin) store(static_cast<T*>(p.grad_x), (t - kPast) * vectors + vector, pending[kPast]);
  }
  float* parts = p.weight_parts + blockIdx.x * (kTaps + 1) * p.width;
#pragma unroll
  for (int w = 0; w < kTaps; ++w) store(parts + w * p.width, vector, sums[w]);
  store(parts + kTaps * p.width, vector, bias_sum);
}

template <class F>
cudaError_t with_vectors(int64_t width, const F& f) {
  switch ((width + 32 * kVector - 1) / (32 * kVector)) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    case 4: return f(std::integral_constant<int, 4>());
    case 5:
    case 6: return f(std::integral_constant<int, 6>());
    default: return f(std::integral_constant<int, 8>());
  }
}

template <class F>
cudaError_t with_type(RowType type, const F& f) {
  return type == RowType::kFloat32 ? f(float()) : f(__nv_bfloat16());
}

template <class F>
cudaError_t with_taps(int64_t taps, const F& f) {
  switch (taps) {
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    default: return f(std::integral_constant<int, 4>());
  }
}

template <class F>
cudaError_t with_norm(const NormCuda& p, const F& f) {
  return with_type(p.type, [&](auto type) {
    return with_vectors(p.width, [&](auto vectors) {
      return p.gate == nullptr ? f(type, vectors, std::false_type()) : f(type, vectors, std::true_type());
    });
  });
}

template <class F>
cudaError_t with_conv(const ConvCuda& p, const F& f) {
  if (!conv_cuda_takes(p.width, p.taps)) return cudaErrorInvalidValue;
  return with_type(p.type, [&](auto type) { return with_taps(p.taps, [&](auto taps) { return f(type, taps); }); });
}

dim3 conv_grid(const ConvCuda& p) { return {static_cast<unsigned>(p.task_count), static_cast<unsigned>((p.width / kVector + 127) / 128)}; }

unsigned blocks_of(int64_t count, int64_t each) { return static_cast<unsigned>((count + each - 1) / each); }

}  // namespace

bool norm_cuda_takes(int64_t width) { return width > 0 && width % kVector == 0 && width <= 32 * kVector * kMaxVectors; }

cudaError_t norm_cuda(const NormCuda& p, cudaStream_t stream) {
  if (!norm_cuda_takes(p.width)) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  return with_norm(p, [&](auto type, auto vectors, auto gated) {
    norm_kernel<decltype(type), decltype(vectors)::value, decltype(gated)::value><<<blocks_of(p.rows, kWarps), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t norm_backward_cuda(const NormCuda& p, cudaStream_t stream) {
  if (!norm_cuda_takes(p.width)) return cudaErrorInvalidValue;
  return with_norm(p, [&](auto type, auto vectors, auto gated) {
    const auto kernel = norm_backward_kernel<decltype(type), decltype(vectors)::value, decltype(gated)::value>;
    const auto shared = static_cast<int>(kWarps * p.width * sizeof(float));
    if (shared > 48 * 1024) {
      const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
      if (status != cudaSuccess) return status;
    }
    kernel<<<kNormParts, kThreads, shared, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t swiglu_cuda(RowType type, int64_t count, const void* gate, const void* up, void* out, cudaStream_t stream) {
  if (count % kVector != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  return with_type(type, [&](auto t) {
    using T = decltype(t);
    swiglu_kernel<T><<<blocks_of(count / kVector, kThreads), kThreads, 0, stream>>>(count / kVector, static_cast<const T*>(gate),
                                                                                    static_cast<const T*>(up), static_cast<T*>(out));
    return cudaGetLastError();
  });
}

cudaError_t swiglu_backward_cuda(RowType type, int64_t count, const void* gate, const void* up, const void* grad, void* grad_gate,
                                 void* grad_up, cudaStream_t stream) {
  if (count % kVector != 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  return with_type(type, [&](auto t) {
    using T = decltype(t);
    swiglu_backward_kernel<T><<<blocks_of(count / kVector, kThreads), kThreads, 0, stream>>>(
        count / kVector, static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<const T*>(grad), static_cast<T*>(grad_gate),
        static_cast<T*>(grad_up));
    return cudaGetLastError();
  });
}

bool conv_cuda_takes(int64_t width, int64_t taps) { return width > 0 && width % kVector == 0 && taps >= 2 && taps <= 4; }

cudaError_t conv_cuda(const ConvCuda& p, cudaStream_t stream) {
  if (p.task_count == 0) return cudaSuccess;
  return with_conv(p, [&](auto type, auto taps) {
    conv_kernel<decltype(type), decltype(taps)::value><<<conv_grid(p), 128, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t conv_backward_cuda(const ConvCuda& p, cudaStream_t stream) {
  if (p.task_count == 0) return cudaSuccess;
  return with_conv(p, [&](auto type, auto taps) {
    conv_backward_kernel<decltype(type), decltype(taps)::value><<<conv_grid(p), 128, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace cyfa::rows
