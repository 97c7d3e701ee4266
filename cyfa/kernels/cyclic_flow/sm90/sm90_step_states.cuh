// State update of the decoding step in groups of four rows by one float4 column: S = alpha S + a x^T and the products with S. In
// sm90_step.cu a thread owns a column and loads groups from global memory (Share, Ahead), which it overwrites; sm90_step_held.cu applies
// update() and read() to groups in shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace cyfa::cyclic_flow::step {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroupRows = 4;  // rows whose products a thread sums before they go to shared memory

__device__ inline float4 fma4(float a, float4 b, float4 c) {
  return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}
__device__ inline float4 scaled(float a, float4 b) { return make_float4(a * b.x, a * b.y, a * b.z, a * b.w); }
__device__ inline float dot4(float4 a, float4 b, float c) { return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, c)))); }
__device__ inline float2 add2(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }

// Four adjacent elements of a state as stored.
template <class S>
struct Quad;

template <>
struct Quad<float> {
  using Packed = float4;
  static __device__ float4 wide(float4 x) { return x; }
  static __device__ float4 narrow(float4 x) { return x; }
};

template <>
struct Quad<__nv_bfloat16> {
  using Packed = uint2;
  static __device__ float4 wide(uint2 x) {
    return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xFFFF0000U), __uint_as_float(x.y << 16),
                       __uint_as_float(x.y & 0xFFFF0000U));
  }
  static __device__ uint2 narrow(float4 x) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y), high = __floats2bfloat162_rn(x.z, x.w);
    return make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
  }
};

template <class S>
struct Rows {
  typename Quad<S>::Packed x[kGroupRows];
};

// The groups of rows that a thread processes, in four columns of a state.
template <class S>
struct Share {
  using Packed = typename Quad<S>::Packed;
  Packed* column;  // row 0
  int row_stride;  // in Packed
  int first;       // first group
  int step;
  int end;

  __device__ int group(int n) const { return first + n * step; }
  __device__ bool has(int n) const { return group(n) < end; }
  __device__ Packed* at(int n) const { return column + static_cast<int64_t>(kGroupRows * group(n)) * row_stride; }

  __device__ Rows<S> load(int n) const {
    Rows<S> rows = {};
    if (has(n)) {
      const Packed* from = at(n);
#pragma unroll
      for (int i = 0; i < kGroupRows; ++i) rows.x[i] = __ldcs(from + i * row_stride);
    }
    return rows;
  }
};

// S[r, :] = alpha S[r, :] + a[r] x for one group, rounded to the storage type.
template <class S>
__device__ inline void update(Rows<S>& rows, float alpha, float4 x, float4 a) {
  const float in[kGroupRows] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (int i = 0; i < kGroupRows; ++i) rows.x[i] = Quad<S>::narrow(fma4(in[i], x, scaled(alpha, Quad<S>::wide(rows.x[i]))));
}

// sum_r b[r] S[r, :] over one group.
template <class S>
__device__ inline float4 read(const Rows<S>& rows, float4 b) {
  const float out[kGroupRows] = {b.x, b.y, b.z, b.w};
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
  for (int i = 0; i < kGroupRows; ++i) sum = fma4(out[i], Quad<S>::wide(rows.x[i]), sum);
  return sum;
}

__device__ inline float4 group_of(const float* x, int group) { return *reinterpret_cast<const float4*>(x + kGroupRows * group); }

// The next kCount groups of a share, loaded ahead of their use.
template <class S, int kCount>
struct Ahead {
  Rows<S> rows[kCount];

  __device__ explicit Ahead(const Share<S>& share) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) rows[i] = share.load(i);
  }

  // Updates and reads all groups. The sum of group g goes to sums[(g - first) * columns].
  __device__ void update_and_read(const Share<S>& share, float alpha, float4 x, const float* a, const float* b, float4* sums, int first,
                                  int columns) {
#pragma unroll 1
    for (int n = 0; share.has(n); n += kCount) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (!share.has(n + i)) break;
        const int group = share.group(n + i);
        update(rows[i], alpha, x, group_of(a, group));
#pragma unroll
        for (int r = 0; r < kGroupRows; ++r) __stcs(share.at(n + i) + r * share.row_stride, rows[i].x[r]);
        sums[(group - first) * columns] = read(rows[i], group_of(b, group));
        rows[i] = share.load(n + i + kCount);
      }
    }
  }
};

}  // namespace cyfa::cyclic_flow::step
