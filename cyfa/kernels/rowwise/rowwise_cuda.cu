// RMSNorm, SwiGLU and sums of partial gradients (rowwise_cuda.h). All are bound by memory bandwidth: a thread loads eight elements at a
// time, everything is read once, and arithmetic is fp32.
#include "cyfa/kernels/rowwise/vector.cuh"
#include "cyfa/kernels/sm90/launch.cuh"

namespace cyfa::rowwise {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxVectors = 8;     // per lane, in a row of a norm: 2,048 elements
constexpr int64_t kFewRows = 512;  // up to this many rows a norm takes one block per row, to minimise latency
constexpr float kSmallest = 1.17549435e-38F;

// One warp per row; lane l holds vectors l, l + 32, ... kFew: blocks of one warp that load the weight together with the row and use
// programmatic dependent launch.
template <class T, int kVectors, bool kGated, bool kPlus, bool kFew>
__global__ void __launch_bounds__(kFew ? 32 : kThreads) norm_kernel(const __grid_constant__ NormCuda p) {
  const int lane = threadIdx.x % 32;
  const int64_t row = kFew ? blockIdx.x : static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= p.rows) return;
  if constexpr (kFew) {
    sm90::let_next_launch_begin();
    sm90::wait_for_earlier_launch();
  }
  const int vectors = static_cast<int>(p.width / kVector);
  const int64_t offset = row * p.width;
  Eight rows[kVectors], weights[kFew ? kVectors : 1];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = lane + 32 * i;
    if (at >= vectors) break;
    rows[i] = load(static_cast<const T*>(p.x) + offset, at);
    if constexpr (kFew) weights[i] = load(p.weight, at);
    if constexpr (kPlus) {
      const Eight more = load(static_cast<const T*>(p.plus) + offset, at);
#pragma unroll
      for (int e = 0; e < kVector; ++e) rows[i].at[e] = rounded<T>(rows[i].at[e] + more.at[e]);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (lane + 32 * i >= vectors) break;
    if constexpr (kPlus) store(static_cast<T*>(p.sum) + offset, lane + 32 * i, rows[i]);
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
    const Eight weight = kFew ? weights[kFew ? i : 0] : load(p.weight, at);
#pragma unroll
    for (int e = 0; e < kVector; ++e) rows[i].at[e] *= rate * weight.at[e];
    if constexpr (kGated) {
      const Eight gate = load(static_cast<const T*>(p.gate) + offset, at);
#pragma unroll
      for (int e = 0; e < kVector; ++e) rows[i].at[e] *= sigmoid(gate.at[e]);
    }
    store(static_cast<T*>(p.out) + offset, at, rows[i]);
  }
}

// kNormParts blocks take equal ranges of rows; two blocks per SM run at once. A group of kGroupWarps warps holds a row, one vector per
// thread, and has kRows rows in flight. The sums for the weight's gradient stay in registers to the end of the range.
template <class T, int kGroupWarps, bool kGated>
__global__ void __launch_bounds__(kThreads, 2) norm_backward_kernel(NormCuda p) {
  constexpr int kGroups = kWarps / kGroupWarps, kRows = std::is_same_v<T, float> ? 2 : 4;
  extern __shared__ float parts[];  // [kGroups, width]
  __shared__ float dots[2][kWarps][kRows];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / kGroupWarps;
  const int at = (warp % kGroupWarps) * 32 + lane;
  const bool idle = group >= kGroups || at >= static_cast<int>(p.width / kVector);
  const int64_t begin = p.rows * blockIdx.x / kNormParts, end = p.rows * (blockIdx.x + 1) / kNormParts;
  Eight sums{}, gate_sums{}, weight{};
  if (!idle) weight = load(p.weight, at);
  int phase = 0;
  for (int64_t first = begin; first < end; first += kGroups * kRows, phase ^= 1) {
    Packed<T> x[kRows], grad[kRows], gate[kRows], more[kRows];
    float rate[kRows], along[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r * kGroups + group, offset = row * p.width;
      if (idle || row >= end) continue;
      x[r] = load_packed(static_cast<const T*>(p.x) + offset, at);
      grad[r] = load_packed(static_cast<const T*>(p.grad) + offset, at);
      rate[r] = p.rate[row];
      if constexpr (kGated) gate[r] = load_packed(static_cast<const T*>(p.gate) + offset, at);
      if (!kGated && p.grad_sum != nullptr) more[r] = load_packed(static_cast<const T*>(p.grad_sum) + offset, at);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r * kGroups + group;
      along[r] = 0;
      if (!idle && row < end) {
        const Eight n = unpack(x[r]), g = unpack(grad[r]);
        Eight by;
        if constexpr (kGated) by = unpack(gate[r]);
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          float through = g.at[e];
          const float unit = n.at[e] * rate[r];
          if constexpr (kGated) {
            const float s = sigmoid(by.at[e]);
            through *= s;
            by.at[e] = unit * through * weight.at[e] * (1.0F - s);
            gate_sums.at[e] += by.at[e];
          }
          sums.at[e] += unit * through;
          along[r] += unit * through * weight.at[e];
        }
        if constexpr (kGated) store(static_cast<T*>(p.grad_gate) + row * p.width, at, by);
      }
      along[r] = warp_sum(along[r]);
      if (kGroupWarps > 1 && lane == 0) dots[phase][warp][r] = along[r];
    }
    if constexpr (kGroupWarps > 1) {  // `dots` is double buffered: a warp that runs ahead does not overwrite sums that others still read
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        along[r] = 0;
#pragma unroll
        for (int w = 0; w < kGroupWarps; ++w) along[r] += dots[phase][min(group * kGroupWarps + w, kWarps - 1)][r];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r * kGroups + group;
      if (idle || row >= end) continue;
      const Eight n = unpack(x[r]), g = unpack(grad[r]);
      Eight out, by;
      if constexpr (kGated) by = unpack(gate[r]);
      const float mean = along[r] / static_cast<float>(p.width);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const float through = kGated ? g.at[e] * sigmoid(by.at[e]) : g.at[e];
        out.at[e] = (through * weight.at[e] - n.at[e] * rate[r] * mean) * rate[r];
      }
      if (!kGated && p.grad_sum != nullptr) {
        const Eight add = unpack(more[r]);
#pragma unroll
        for (int e = 0; e < kVector; ++e) out.at[e] += add.at[e];
      }
      store(static_cast<T*>(p.grad_x) + row * p.width, at, out);
    }
  }
  if (!idle) store(parts + group * p.width, at, sums);
  __syncthreads();
  for (int64_t column = threadIdx.x; column < p.width; column += kThreads) {
    float sum = 0;
    for (int g = 0; g < kGroups; ++g) sum += parts[g * p.width + column];
    p.weight_parts[blockIdx.x * p.width + column] = sum;
  }
  if constexpr (kGated) {
    if (p.gate_bias_parts == nullptr) return;
    __syncthreads();
    if (!idle) store(parts + group * p.width, at, gate_sums);
    __syncthreads();
    const int heads = static_cast<int>(p.heads);  // divides kGroups, so that all rows of a group belong to one head
    for (int64_t column = threadIdx.x; column < p.width; column += kThreads) {
      for (int h = 0; h < heads; ++h) {
        float sum = 0;
        for (int g = static_cast<int>((h + heads - begin % heads) % heads); g < kGroups; g += heads) sum += parts[g * p.width + column];
        p.gate_bias_parts[(blockIdx.x * p.heads + h) * p.width + column] = sum;
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluCuda p, uint32_t row_vectors, uint32_t vectors) {
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= vectors) return;
  const int64_t row = at / row_vectors, from = row * (p.stride / kVector) + at % row_vectors;
  Eight g = load(static_cast<const T*>(p.gate), from);
  if (p.up != nullptr) {
    const Eight u = load(static_cast<const T*>(p.up), from);
#pragma unroll
    for (int e = 0; e < kVector; ++e) g.at[e] = g.at[e] * sigmoid(g.at[e]) * u.at[e];
  } else {
#pragma unroll
    for (int e = 0; e < kVector; ++e) g.at[e] *= sigmoid(g.at[e]);
  }
  store(static_cast<T*>(p.out), at, g);
}

template <class T>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(SwigluCuda p, uint32_t row_vectors, uint32_t vectors) {
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= vectors) return;
  const int64_t row = at / row_vectors, from = row * (p.stride / kVector) + at % row_vectors;
  Eight g = load(static_cast<const T*>(p.gate), from);
  Eight d = load(static_cast<const T*>(p.grad), at);
  Eight u{};
  if (p.up != nullptr) u = load(static_cast<const T*>(p.up), from);
  if (p.out != nullptr) {
    Eight out;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      out.at[e] = g.at[e] * sigmoid(g.at[e]);
      if (p.up != nullptr) out.at[e] *= u.at[e];
    }
    store(static_cast<T*>(p.out), at, out);
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const float s = sigmoid(g.at[e]);
    const float into_up = d.at[e] * g.at[e] * s;
    const float slope = d.at[e] * s * (1.0F + g.at[e] * (1.0F - s));
    g.at[e] = p.up == nullptr ? slope : slope * u.at[e];
    u.at[e] = into_up;
  }
  store(static_cast<T*>(p.grad_gate), from, g);
  if (p.up != nullptr) store(static_cast<T*>(p.grad_up), from, u);
}

// A block computes 32 columns of a sum. Each warp adds every 16th part, then the warps' sums are added in warp order.
constexpr int kSumWarps = 16;
__global__ void __launch_bounds__(32 * kSumWarps) sum_parts_kernel(const __grid_constant__ SumParts p) {
  __shared__ float sums[kSumWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t block = blockIdx.x;
  int which = 0;
  while (which + 1 < p.sums && block >= (p.sum[which].columns + 31) / 32) block -= (p.sum[which++].columns + 31) / 32;
  const SumParts::Sum& of = p.sum[which];
  const int64_t column = block * 32 + lane, count = of.count, stride = of.stride;
  const float* parts = of.parts + column;
  float sum = 0;
  if (column < of.columns) {
#pragma unroll 8
    for (int64_t i = warp; i < count; i += kSumWarps) sum += parts[i * stride];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= of.columns) return;
#pragma unroll
  for (int w = 1; w < kSumWarps; ++w) sum += sums[w][lane];
  of.to[column] = p.add ? of.to[column] + sum : sum;
}

// The smallest supported count that covers a row: vectors per lane if a warp holds a row (norm_kernel), warps per row if a thread holds one
// vector (norm_backward_kernel).
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
cudaError_t with_norm(const NormCuda& p, const F& f) {
  return with_type(p.type, [&](auto type) {
    return with_vectors(p.width, [&](auto vectors) {
      return p.gate == nullptr ? f(type, vectors, std::false_type()) : f(type, vectors, std::true_type());
    });
  });
}

template <class F>
cudaError_t with_swiglu(const SwigluCuda& p, const F& f) {
  const int64_t vectors = p.rows * p.width / kVector;
  if (p.width % kVector != 0 || p.stride % kVector != 0 || vectors > UINT32_MAX - kThreads) return cudaErrorInvalidValue;
  if (vectors == 0) return cudaSuccess;
  return with_type(p.type, [&](auto type) {
    f(type, blocks_of(vectors, kThreads), static_cast<uint32_t>(p.width / kVector), static_cast<uint32_t>(vectors));
    return cudaGetLastError();
  });
}

}  // namespace

bool norm_cuda_takes(int64_t width) { return width > 0 && width % kVector == 0 && width <= 32 * kVector * kMaxVectors; }

cudaError_t norm_cuda(const NormCuda& p, cudaStream_t stream) {
  if (!norm_cuda_takes(p.width) || (p.plus != nullptr && p.gate != nullptr)) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  return with_norm(p, [&](auto type, auto vectors, auto gated) {
    using T = decltype(type);
    constexpr int kVectors = decltype(vectors)::value;
    constexpr bool kGated = decltype(gated)::value;
    if (p.plus != nullptr && p.rows <= kFewRows) {
      return sm90::launch_early(&norm_kernel<T, kVectors, false, true, true>, static_cast<int>(p.rows), 32, 0, stream, p);
    }
    const auto kernel = p.plus == nullptr ? norm_kernel<T, kVectors, kGated, false, false> : norm_kernel<T, kVectors, false, true, false>;
    kernel<<<blocks_of(p.rows, kWarps), kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

bool norm_cuda_sums_gate_bias(int64_t width, int64_t heads) {
  if (!norm_cuda_takes(width) || heads < 1) return false;
  int groups = 0;
  with_vectors(width, [&](auto warps) {
    groups = kWarps / decltype(warps)::value;
    return cudaSuccess;
  });
  return groups % heads == 0;
}

cudaError_t norm_backward_cuda(const NormCuda& p, cudaStream_t stream) {
  if (!norm_cuda_takes(p.width)) return cudaErrorInvalidValue;
  if (p.gate_bias_parts != nullptr && !norm_cuda_sums_gate_bias(p.width, p.heads)) return cudaErrorInvalidValue;
  return with_norm(p, [&](auto type, auto warps, auto gated) {
    constexpr int kGroupWarps = decltype(warps)::value;
    const auto shared = static_cast<unsigned>(kWarps / kGroupWarps * p.width * static_cast<int64_t>(sizeof(float)));
    norm_backward_kernel<decltype(type), kGroupWarps, decltype(gated)::value><<<kNormParts, kThreads, shared, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t swiglu_cuda(const SwigluCuda& p, cudaStream_t stream) {
  return with_swiglu(p, [&](auto type, unsigned blocks, uint32_t row_vectors, uint32_t vectors) {
    swiglu_kernel<decltype(type)><<<blocks, kThreads, 0, stream>>>(p, row_vectors, vectors);
  });
}

cudaError_t swiglu_backward_cuda(const SwigluCuda& p, cudaStream_t stream) {
  return with_swiglu(p, [&](auto type, unsigned blocks, uint32_t row_vectors, uint32_t vectors) {
    swiglu_backward_kernel<decltype(type)><<<blocks, kThreads, 0, stream>>>(p, row_vectors, vectors);
  });
}

cudaError_t sum_parts_cuda(const SumParts& p, cudaStream_t stream) {
  unsigned blocks = 0;
  for (int i = 0; i < p.sums; ++i) blocks += blocks_of(p.sum[i].columns, 32);
  if (blocks == 0) return cudaSuccess;
  sum_parts_kernel<<<blocks, 32 * kSumWarps, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace cyfa::rowwise
