// The short convolution over whole sequences, forward and backward (rowwise_cuda.h). A warp takes 128 columns, four per lane, and an eighth
// of a task's tokens, with the window of rows in registers. cp.async prefetches the next rows into a ring buffer in shared memory; every
// lane reads back only what it copied itself, so the ring needs no barrier. Prefetching into registers reduces occupancy (5% slower
// backward, 8% forward).
#include "cyfa/kernels/rowwise/vector.cuh"

namespace cyfa::rowwise {
namespace {

constexpr int kLane = 4;  // columns per lane
constexpr int kColumns = 32 * kLane;
constexpr int kWarps = 8;

struct Four {
  float at[kLane];
};

constexpr int kBatch = 4;  // rows per stage of the ring

// Four columns of a row in their memory format, and the number of stages of the ring.
template <class T>
struct Raw;
template <>
struct Raw<float> {
  using Type = float4;
  static constexpr int kStages = 2;
};
template <>
struct Raw<__nv_bfloat16> {
  using Type = uint2;
  static constexpr int kStages = 4;
};

template <class T>
__device__ __forceinline__ typename Raw<T>::Type load_raw(const T* from) {
  return *reinterpret_cast<const typename Raw<T>::Type*>(from);
}

// A lane's part of its warp's ring buffer. Each stage holds kBatch rows of kArrays arrays.
template <class T, int kArrays>
struct Ring {
  using Word = typename Raw<T>::Type;
  static constexpr int kStages = Raw<T>::kStages;
  static constexpr int kWarpWords = kStages * kBatch * kArrays * 32;
  static constexpr unsigned kBytes = kWarps * kWarpWords * sizeof(Word);
  Word* words;

  __device__ __forceinline__ explicit Ring(void* memory)
      : words(static_cast<Word*>(memory) + (threadIdx.x / 32) * kWarpWords + threadIdx.x % 32) {}
  __device__ __forceinline__ Word* at(int step, int row, int array) const {
    return words + ((step % kStages * kBatch + row) * kArrays + array) * 32;
  }
  // Copies a row asynchronously; zeros if it does not exist.
  __device__ __forceinline__ void ask(int step, int row, int array, const T* from, bool there) const {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(at(step, row, array)));
    constexpr int kSize = sizeof(Word);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kSize), "r"(there ? kSize : 0) : "memory");
  }
  __device__ __forceinline__ static void close_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // Waits until all but the newest kStages - 1 stages have arrived.
  __device__ __forceinline__ static void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory"); }
};

__device__ __forceinline__ Four four(const float4& x) { return {{x.x, x.y, x.z, x.w}}; }

__device__ __forceinline__ Four four(const uint2& x) {
  return {{__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000U), __uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000U)}};
}

__device__ __forceinline__ void store_four(float* to, const Four& x) {
  *reinterpret_cast<float4*>(to) = {x.at[0], x.at[1], x.at[2], x.at[3]};
}

__device__ __forceinline__ void store_four(__nv_bfloat16* to, const Four& x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.at[0], x.at[1]), high = __floats2bfloat162_rn(x.at[2], x.at[3]);
  *reinterpret_cast<uint2*>(to) = {*reinterpret_cast<const unsigned int*>(&low), *reinterpret_cast<const unsigned int*>(&high)};
}

// The work of a lane: four columns of an input and rows [begin, end), which are its warp's.
struct Walk {
  ConvTask task;
  int64_t begin, end;
  int64_t column;  // first column, within the input
  int64_t parts;   // where the input's weights start in a row of parts
  int input;
  bool idle;
};

template <int kTaps>
__device__ __forceinline__ Walk walk_of(const ConvCuda& p) {
  Walk w;
  w.task = p.tasks[blockIdx.x];
  int64_t block = blockIdx.y;
  w.parts = 0;
  w.input = 0;
  while (w.input + 1 < p.inputs) {
    const int64_t width = p.input[w.input].width, blocks = (width + kColumns - 1) / kColumns;
    if (block < blocks) break;
    block -= blocks;
    w.parts += width * kTaps;
    ++w.input;
  }
  const int warp = threadIdx.x / 32;
  w.column = block * kColumns + (threadIdx.x % 32) * kLane;
  const int64_t each = (w.task.end - w.task.begin + kWarps - 1) / kWarps;
  w.begin = min(w.task.end, w.task.begin + warp * each);
  w.end = min(w.task.end, w.begin + each);
  w.idle = w.column >= p.input[w.input].width;
  return w;
}

// A row of the sequence; rows before its first token come from `before`.
template <class T, int kTaps>
__device__ __forceinline__ typename Raw<T>::Type row_of(const ConvCuda& p, const ConvInput& s, const Walk& w, int64_t row) {
  if (row >= w.task.first) return load_raw(static_cast<const T*>(s.x) + row * p.x_stride + w.column);
  if (s.before == nullptr) return {};
  constexpr int64_t kPast = kTaps - 1;
  return load_raw(static_cast<const T*>(s.before) + (w.task.sequence * kPast + kPast + row - w.task.first) * s.width + w.column);
}

template <int kTaps>
__device__ __forceinline__ void load_taps(const ConvInput& s, int64_t column, Four (&tap)[kTaps]) {
#pragma unroll
  for (int e = 0; e < kLane; ++e) {
#pragma unroll
    for (int w = 0; w < kTaps; ++w) tap[w].at[e] = s.weight[(column + e) * kTaps + w];
  }
}

template <class T, int kTaps>
__global__ void __launch_bounds__(32 * kWarps, 3) conv_kernel(const __grid_constant__ ConvCuda p) {
  extern __shared__ float4 memory[];
  constexpr int kPast = kTaps - 1;
  const Walk w = walk_of<kTaps>(p);
  if (w.idle || w.begin >= w.end) return;
  const ConvInput& s = p.input[w.input];
  const Ring<T, 1> ring(memory);
  const int tokens = static_cast<int>(w.end - w.begin), steps = (tokens + kBatch - 1) / kBatch;
  const int x_stride = static_cast<int>(p.x_stride), stride = static_cast<int>(s.width);
  const T* from = static_cast<const T*>(s.x) + w.begin * p.x_stride + w.column;
  const auto ask = [&](int step) {
    if (step < steps) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) ring.ask(step, i, 0, from + i * x_stride, step * kBatch + i < tokens);
      from += kBatch * p.x_stride;
    }
    ring.close_stage();
  };
#pragma unroll
  for (int step = 0; step + 1 < ring.kStages; ++step) ask(step);
  typename Raw<T>::Type x[kPast + kBatch];
  Four tap[kTaps], bias{};
  load_taps<kTaps>(s, w.column, tap);
  if (s.bias != nullptr) bias = four(load_raw(s.bias + w.column));
#pragma unroll
  for (int i = 0; i < kPast; ++i) x[i] = row_of<T, kTaps>(p, s, w, w.begin - kPast + i);
  T* to = static_cast<T*>(s.y) + w.begin * s.width + w.column;
  for (int step = 0; step < steps; ++step, to += kBatch * s.width) {
    ask(step + ring.kStages - 1);
    ring.wait();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) x[kPast + i] = *ring.at(step, i, 0);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      Four y = bias;
#pragma unroll
      for (int j = kPast; j >= 0; --j) {
        const Four row = four(x[i + j]);
#pragma unroll
        for (int e = 0; e < kLane; ++e) y.at[e] += row.at[e] * tap[j].at[e];
      }
      if (step * kBatch + i < tokens) store_four(to + i * stride, y);
    }
#pragma unroll
    for (int i = 0; i < kPast; ++i) x[i] = x[kBatch + i];
  }
}

// Row t of x contributes to outputs t .. t + taps - 1 of its sequence, so a warp keeps a window of the gradients ahead of it and the window
// of rows behind it. The warps' sums over a task are added in warp order.
template <class T, int kTaps, bool kBias>
__global__ void __launch_bounds__(32 * kWarps, 2)
    conv_backward_kernel(const __grid_constant__ ConvCuda p, int64_t parts_columns, int64_t bias_column) {
  extern __shared__ float4 memory[];  // the ring buffer, then the warps' sums
  constexpr int kPast = kTaps - 1, kSums = kTaps + (kBias ? 1 : 0);
  const Walk w = walk_of<kTaps>(p);
  const ConvInput& s = p.input[w.input];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Four sums[kSums] = {};
  if (!w.idle && w.begin < w.end) {
    const Ring<T, 2> ring(memory);
    const int tokens = static_cast<int>(w.end - w.begin), outputs = static_cast<int>(min(w.task.last - w.begin, int64_t{tokens} + kPast));
    const int steps = (tokens + kBatch - 1) / kBatch;
    const int x_stride = static_cast<int>(p.x_stride), stride = static_cast<int>(s.width);
    const int64_t offset = w.begin * p.x_stride + w.column;
    const T* from = static_cast<const T*>(s.x) + offset;
    const T* first_grad = static_cast<const T*>(s.grad) + w.begin * s.width + w.column;
    const T* grad = first_grad + kPast * stride;
    const auto ask = [&](int step) {
      if (step < steps) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          ring.ask(step, i, 0, from + i * x_stride, step * kBatch + i < tokens);
          ring.ask(step, i, 1, grad + i * stride, step * kBatch + kPast + i < outputs);
        }
        from += kBatch * p.x_stride;
        grad += kBatch * s.width;
      }
      ring.close_stage();
    };
#pragma unroll
    for (int step = 0; step + 1 < ring.kStages; ++step) ask(step);
    typename Raw<T>::Type x[kPast + kBatch], g[kPast + kBatch];
    Four tap[kTaps];
    load_taps<kTaps>(s, w.column, tap);
#pragma unroll
    for (int i = 0; i < kPast; ++i) {
      x[i] = row_of<T, kTaps>(p, s, w, w.begin - kPast + i);
      g[i] = {};
      if (i < outputs) g[i] = load_raw(first_grad + i * stride);
    }
    T* to = static_cast<T*>(s.grad_x) + offset;
    for (int step = 0; step < steps; ++step, to += kBatch * p.x_stride) {
      ask(step + ring.kStages - 1);
      ring.wait();
      // x[i] is row kBatch * step - kPast + i of the warp's range, g[i] the gradient of output kBatch * step + i.
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        x[kPast + i] = *ring.at(step, i, 0);
        g[kPast + i] = *ring.at(step, i, 1);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (step * kBatch + i < tokens) {
          const Four now = four(g[i]);
          Four d{};
#pragma unroll
          for (int j = 0; j < kTaps; ++j) {
            const Four ahead = four(g[i + j]), row = four(x[i + j]);
#pragma unroll
            for (int e = 0; e < kLane; ++e) {
              d.at[e] += ahead.at[e] * tap[kPast - j].at[e];
              sums[j].at[e] += now.at[e] * row.at[e];
            }
          }
          if constexpr (kBias) {
#pragma unroll
            for (int e = 0; e < kLane; ++e) sums[kTaps].at[e] += now.at[e];
          }
          store_four(to + i * x_stride, d);
        }
      }
#pragma unroll
      for (int i = 0; i < kPast; ++i) {
        x[i] = x[kBatch + i];
        g[i] = g[kBatch + i];
      }
    }
  }
  auto& shared = *reinterpret_cast<float(*)[kWarps][kSums][kColumns]>(memory);
  __syncthreads();  // all warps are done with the ring
#pragma unroll
  for (int j = 0; j < kSums; ++j) store_four(&shared[warp][j][lane * kLane], sums[j]);
  __syncthreads();
  const int64_t block_column = w.column - lane * kLane;
  float* parts = p.parts + blockIdx.x * parts_columns;
  for (int i = threadIdx.x; i < kColumns * kTaps; i += 32 * kWarps) {
    const int column = i / kTaps, tap = i % kTaps;
    if (block_column + column >= s.width) break;
    float sum = 0;
#pragma unroll
    for (int from = 0; from < kWarps; ++from) sum += shared[from][tap][column];
    parts[w.parts + block_column * kTaps + i] = sum;
  }
  if constexpr (kBias) {
    const int64_t column = block_column + threadIdx.x;
    if (threadIdx.x < kColumns && column < s.width) {
      float sum = 0;
      for (int from = 0; from < kWarps; ++from) sum += shared[from][kTaps][threadIdx.x];
      parts[bias_column + w.parts / kTaps + column] = sum;
    }
  }
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
cudaError_t with_conv(const ConvCuda& p, const F& f) {
  if (p.inputs < 1 || p.inputs > ConvCuda::kInputs || p.x_stride % kVector != 0) return cudaErrorInvalidValue;
  for (int i = 0; i < p.inputs; ++i) {
    if (!conv_cuda_takes(p.input[i].width, p.taps)) return cudaErrorInvalidValue;
  }
  return with_type(p.type, [&](auto type) { return with_taps(p.taps, [&](auto taps) { return f(type, taps); }); });
}

dim3 conv_grid(const ConvCuda& p) {
  unsigned columns = 0;
  for (int i = 0; i < p.inputs; ++i) columns += blocks_of(p.input[i].width, kColumns);
  return {static_cast<unsigned>(p.task_count), columns};
}

int64_t conv_columns(const ConvCuda& p) {
  int64_t columns = 0;
  for (int i = 0; i < p.inputs; ++i) columns += p.input[i].width;
  return columns;
}

}  // namespace

bool conv_cuda_takes(int64_t width, int64_t taps) { return width > 0 && width % kVector == 0 && taps >= 2 && taps <= 4; }

int64_t conv_parts_columns(const ConvCuda& p) { return conv_columns(p) * (p.taps + (p.bias_parts ? 1 : 0)); }

cudaError_t conv_cuda(const ConvCuda& p, cudaStream_t stream) {
  if (p.task_count == 0) return cudaSuccess;
  return with_conv(p, [&](auto type, auto taps) {
    using T = decltype(type);
    conv_kernel<T, decltype(taps)::value><<<conv_grid(p), 32 * kWarps, Ring<T, 1>::kBytes, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t conv_backward_cuda(const ConvCuda& p, cudaStream_t stream) {
  if (p.task_count == 0) return cudaSuccess;
  return with_conv(p, [&](auto type, auto taps) {
    using T = decltype(type);
    constexpr int kTaps = decltype(taps)::value;
    const auto kernel = p.bias_parts ? conv_backward_kernel<T, kTaps, true> : conv_backward_kernel<T, kTaps, false>;
    constexpr unsigned kBytes = Ring<T, 2>::kBytes;
    static_assert(kBytes >= kWarps * (kTaps + 1) * kColumns * sizeof(float));
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (status != cudaSuccess) return status;
    kernel<<<conv_grid(p), 32 * kWarps, kBytes, stream>>>(p, conv_parts_columns(p), conv_columns(p) * kTaps);
    return cudaGetLastError();
  });
}

}  // namespace cyfa::rowwise
