// What a thread of the decoding step does to a state, of which it owns a float4 column: groups of four rows are asked for, updated, written
// back and read. Of step.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cyfa/kernels/hopper/tile.cuh"

namespace cyfa::cyclic_flow::step {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroupRows = 4;  // rows of a state whose products a thread sums before they go to shared memory

__device__ inline float4 fma4(float a, float4 b, float4 c) {
  return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}
__device__ inline float4 scaled(float a, float4 b) { return make_float4(a * b.x, a * b.y, a * b.z, a * b.w); }
__device__ inline float dot4(float4 a, float4 b, float c) { return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, c)))); }
__device__ inline float2 add2(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }

// Four neighbours of a state as they lie in memory.
template <class S>
struct Quad;

template <>
struct Quad<float> {
  using Packed = float4;
  static __device__ float4 wide(float4 x) { return x; }
  static __device__ float4 narrow(float4 x) { return x; }
  static __device__ void copy_async(uint32_t to, const float4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  }
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
  static __device__ void copy_async(uint32_t to, const uint2* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
  }
};

template <class S>
struct Rows {
  typename Quad<S>::Packed x[kGroupRows];
};

// The groups of rows that a thread takes of four columns of a state.
template <class S>
struct Share {
  using Packed = typename Quad<S>::Packed;
  Packed* column;  // row 0
  int row_stride;  // in Packed
  int group;       // the first
  int step;
  int end;

  __device__ Packed* at(int which) const { return column + static_cast<int64_t>(kGroupRows * which) * row_stride; }

  __device__ Rows<S> load(int which) const {
    Rows<S> rows = {};
    if (which < end) {
      const Packed* from = at(which);
#pragma unroll
      for (int i = 0; i < kGroupRows; ++i) rows.x[i] = __ldcs(from + i * row_stride);
    }
    return rows;
  }
};

// One group of S[r, :] = alpha S[r, :] + a[r] x, written to `to`; what is read afterwards is what was written.
template <class S>
__device__ inline void update(Rows<S>& rows, float alpha, float4 x, float4 a, typename Quad<S>::Packed* to, int row_stride) {
  const float in[kGroupRows] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (int i = 0; i < kGroupRows; ++i) {
    rows.x[i] = Quad<S>::narrow(fma4(in[i], x, scaled(alpha, Quad<S>::wide(rows.x[i]))));
    __stcs(to + i * row_stride, rows.x[i]);
  }
}

// sum_r b[r] S[r, :] of one group.
template <class S>
__device__ inline float4 read(const Rows<S>& rows, float4 b) {
  const float out[kGroupRows] = {b.x, b.y, b.z, b.w};
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
  for (int i = 0; i < kGroupRows; ++i) sum = fma4(out[i], Quad<S>::wide(rows.x[i]), sum);
  return sum;
}

__device__ inline float4 group_of(const float* x, int group) { return *reinterpret_cast<const float4*>(x + kGroupRows * group); }

// The next kCount groups of a share, asked for ahead of their use.
template <class S, int kCount>
struct Ahead {
  Rows<S> rows[kCount];

  __device__ explicit Ahead(const Share<S>& share) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) rows[i] = share.load(share.group + i * share.step);
  }

  // Update and reading of all groups. The sum of group g goes to sums[(g - first) * columns].
  __device__ void update_and_read(const Share<S>& share, float alpha, float4 x, const float* a, const float* b, float4* sums, int first,
                                  int columns) {
#pragma unroll 1
    for (int group = share.group; group < share.end; group += kCount * share.step) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int now = group + i * share.step;
        if (now >= share.end) break;
        update(rows[i], alpha, x, group_of(a, now), share.at(now), share.row_stride);
        sums[(now - first) * columns] = read(rows[i], group_of(b, now));
        rows[i] = share.load(now + kCount * share.step);
      }
    }
  }
};

struct Nothing {
  template <class Share>
  __device__ explicit Nothing(const Share&) {}
};

// A share of a state in shared memory, rows of `columns` Packed; each thread touches only what it has copied itself.
template <class S>
struct Held {
  using Packed = typename Quad<S>::Packed;
  Packed* column;
  int columns;

  __device__ Packed* at(int group, int i) const { return column + (kGroupRows * group + i) * columns; }

  __device__ void ask(const Share<S>& share) const {
#pragma unroll 4
    for (int group = share.group; group < share.end; group += share.step) {
#pragma unroll
      for (int i = 0; i < kGroupRows; ++i)
        Quad<S>::copy_async(hopper::shared_address(at(group, i)), share.at(group) + i * share.row_stride);
    }
  }

  __device__ Rows<S> rows(int group) const {
    Rows<S> out;
#pragma unroll
    for (int i = 0; i < kGroupRows; ++i) out.x[i] = *at(group, i);
    return out;
  }

  __device__ void update_all(const Share<S>& share, float alpha, float4 x, const float* a) const {
    asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll 2
    for (int group = share.group; group < share.end; group += share.step) {
      Rows<S> now = rows(group);
      update(now, alpha, x, group_of(a, group), share.at(group), share.row_stride);
#pragma unroll
      for (int i = 0; i < kGroupRows; ++i) *at(group, i) = now.x[i];
    }
  }

  __device__ void read_all(const Share<S>& share, const float* b, float4* sums) const {
#pragma unroll 2
    for (int group = share.group; group < share.end; group += share.step) sums[group * columns] = read(rows(group), group_of(b, group));
  }
};

}  // namespace cyfa::cyclic_flow::step
