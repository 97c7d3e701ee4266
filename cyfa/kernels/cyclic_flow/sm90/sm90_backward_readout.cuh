// Register-level steps between the products of the Hopper backward readout: 64 x 128 accumulators of a warpgroup (sm90/wgmma.cuh) or 16-bit
// A operands. Included by sm90_backward_readout.cu and, through sm90_sections.cuh, by the launches over two sections.
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_device.cuh"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_tokens.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {

// 2^-k for x with exponent k: a scale that costs no precision.
__device__ __forceinline__ float unit_of(float x) {
  const uint32_t exponent = min(max(__float_as_uint(x) >> 23, 64U), 190U);
  return __uint_as_float((254U - exponent) << 23);
}
__device__ __forceinline__ float inverse_of_unit(float unit) { return __uint_as_float((254U << 23) - __float_as_uint(unit)); }

// Maximum of |d| in both rows.
__device__ __forceinline__ void top_of_rows(const float (&d)[64], float& top0, float& top8) {
  top0 = top8 = 0.0F;
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    top0 = fmaxf(top0, fmaxf(fabsf(d[i]), fabsf(d[i + 1])));
    top8 = fmaxf(top8, fmaxf(fabsf(d[i + 2]), fabsf(d[i + 3])));
  }
#pragma unroll
  for (int x = 1; x < 4; x *= 2) {
    top0 = fmaxf(top0, __shfl_xor_sync(0xFFFFFFFF, top0, x));
    top8 = fmaxf(top8, __shfl_xor_sync(0xFFFFFFFF, top8, x));
  }
}

// Applies decay and causal mask to a 64 x 128 accumulator of token-token products, in place. The warp's rows are strip .. strip + 15. Left
// of the strip the decay is split as in decay_and_pack (sm90_tokens.cuh).
__device__ __forceinline__ void decay(float (&d)[64], int strip, const Tokens& s) {
  const int q = threadIdx.x % 4;
  const int row = strip + threadIdx.x % 32 / 4;
  const float2 gate0 = s.gate(row);
  const float2 gate8 = s.gate(row + 8);
  const float2 origin = s.gate(strip);
  const float row0 = gate_between(gate0, origin);
  const float row8 = gate_between(gate8, origin);
  float own[8];  // the diagonal block, whose index is not a compile-time constant
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    if (kBlock * b == strip) {
#pragma unroll
      for (int i = 0; i < 8; ++i) own[i] = d[8 * b + i];
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int t = strip + 8 * n + 2 * q;
    const float2 from0 = s.gate(t);
    const float2 from1 = s.gate(t + 1);
    float* x = own + 4 * n;
    x[0] = t <= row ? x[0] * gate_between(gate0, from0) : 0.0F;
    x[1] = t + 1 <= row ? x[1] * gate_between(gate0, from1) : 0.0F;
    x[2] = t <= row + 8 ? x[2] * gate_between(gate8, from0) : 0.0F;
    x[3] = t + 1 <= row + 8 ? x[3] * gate_between(gate8, from1) : 0.0F;
  }
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    asm volatile("" ::: "memory");  // otherwise all loads are hoisted and registers spill
    if (kBlock * b < strip) {
      const float between = gate_between(origin, s.gate(kBlock * b + kBlock - 1));
      const float e0 = row0 * between;
      const float e8 = row8 * between;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 c = *reinterpret_cast<const float2*>(&s.fade[kBlock * b + 8 * n + 2 * q]);
        float* x = d + 8 * b + 4 * n;
        x[0] *= e0 * c.x;
        x[1] *= e0 * c.y;
        x[2] *= e8 * c.x;
        x[3] *= e8 * c.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) d[8 * b + i] = kBlock * b == strip ? own[i] : 0.0F;
    }
  }
}

// Rotations of a row's pairs 4 i + q, i = 0 .. 15, as two chains of complex products from three sincos.
struct Rotations {
  float2 low, high, step;

  __device__ __forceinline__ explicit Rotations(uint32_t turn, int first = 0)
      : low(rotation(turn, first + threadIdx.x % 4)), high(rotation(turn, first + 32 + threadIdx.x % 4)), step(rotation(turn, 4)) {}
  __device__ __forceinline__ void scale(float factor) {
    low = make_float2(low.x * factor, low.y * factor);
    high = make_float2(high.x * factor, high.y * factor);
  }
  __device__ __forceinline__ void next() {
    low = make_float2(low.x * step.x - low.y * step.y, low.x * step.y + low.y * step.x);
    high = make_float2(high.x * step.x - high.y * step.y, high.x * step.y + high.y * step.x);
  }
};

// In place: rotates the pairs of a 64 x 128 accumulator, starting with frequency `first`, by +clock or -clock of their rows, and
// scales the rows.
template <int kSign>
__device__ __forceinline__ void rotate(float (&d)[64], uint32_t turn0, uint32_t turn8, int first = 0, float factor0 = 1.0F,
                                       float factor8 = 1.0F) {
  Rotations z0(anew(turn0), first);  // anew: otherwise they are kept from one rotation to the next
  Rotations z8(anew(turn8), first);
  z0.scale(factor0);
  z8.scale(factor8);
  const auto turn = [](float& x, float& y, float2 z) {
    const float s = kSign * z.y;
    const float old = x;
    x = old * z.x - y * s;
    y = old * s + y * z.x;
  };
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    turn(d[4 * i], d[4 * i + 1], z0.low);
    turn(d[4 * i + 2], d[4 * i + 3], z8.low);
    turn(d[4 * i + 32], d[4 * i + 33], z0.high);
    turn(d[4 * i + 34], d[4 * i + 35], z8.high);
    z0.next();
    z8.next();
  }
}

// The same for 64 columns, by -clock, converted to bf16.
__device__ __forceinline__ void rotate_back(float (&d)[32], uint32_t turn0, uint32_t turn8, int first, float factor, uint32_t (*a)[4]) {
  turn0 = anew(turn0);
  turn8 = anew(turn8);
  float2 z0 = rotation(turn0, first + threadIdx.x % 4);
  float2 z8 = rotation(turn8, first + threadIdx.x % 4);
  const float2 step0 = rotation(turn0, 4);
  const float2 step8 = rotation(turn8, 4);
  z0 = make_float2(z0.x * factor, z0.y * factor);
  z8 = make_float2(z8.x * factor, z8.y * factor);
  const auto next = [](float2 z, float2 step) { return make_float2(z.x * step.x - z.y * step.y, z.x * step.y + z.y * step.x); };
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float* x = d + 4 * i;
    a[i / 2][i % 2 * 2] = pack_here(x[0] * z0.x + x[1] * z0.y, x[1] * z0.x - x[0] * z0.y);
    a[i / 2][i % 2 * 2 + 1] = pack_here(x[2] * z8.x + x[3] * z8.y, x[3] * z8.x - x[2] * z8.y);
    z0 = next(z0, step0);
    z8 = next(z8, step8);
  }
}

// Frequency of a thread's i-th pair of 16, in the first section.
__device__ __forceinline__ float pair_of(int i) { return static_cast<float>(4 * i + static_cast<int>(threadIdx.x % 4)); }

// This thread's part of X(x, d) of both rows, without the factor 2 pi / m, and of <x, d>. j is the frequency of pair i.
struct Products {
  float slope0 = 0.0F, slope8 = 0.0F, dot0 = 0.0F, dot8 = 0.0F;

  __device__ __forceinline__ void add(int i, float2 x0, float2 x8, const float (&d)[64], float j) {
    slope0 = fmaf(j, x0.x * d[4 * i + 1] - x0.y * d[4 * i], slope0);
    slope8 = fmaf(j, x8.x * d[4 * i + 3] - x8.y * d[4 * i + 2], slope8);
    dot0 = fmaf(x0.x, d[4 * i], fmaf(x0.y, d[4 * i + 1], dot0));
    dot8 = fmaf(x8.x, d[4 * i + 2], fmaf(x8.y, d[4 * i + 3], dot8));
  }
};

// unpack with other instructions: otherwise the compiler keeps the result of an earlier unpack.
__device__ __forceinline__ float2 unpack_apart(uint32_t x) {
  return make_float2(__uint_as_float(__byte_perm(x, 0, 0x1044)), __uint_as_float(__byte_perm(x, 0, 0x3244)));
}

// Adds <x, d> over 16 columns of both rows, x in bf16.
__device__ __forceinline__ void dot_of_blocks(const uint32_t (&x)[4], const float* d, float& dot0, float& dot8) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 x0 = unpack(x[2 * i]);
    const float2 x8 = unpack(x[2 * i + 1]);
    dot0 = fmaf(x0.x, d[4 * i], fmaf(x0.y, d[4 * i + 1], dot0));
    dot8 = fmaf(x8.x, d[4 * i + 2], fmaf(x8.y, d[4 * i + 3], dot8));
  }
}

// <x, d> of both rows, x in 16 bits.
template <typename Unpack>
__device__ __forceinline__ void dot_of_rows(const uint32_t (&x)[8][4], const float (&d)[64], const Unpack& unpacked, float& dot0,
                                            float& dot8) {
  dot0 = dot8 = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 x0 = unpacked(x[i / 2][i % 2 * 2]);
    const float2 x8 = unpacked(x[i / 2][i % 2 * 2 + 1]);
    dot0 = fmaf(x0.x, d[4 * i], fmaf(x0.y, d[4 * i + 1], dot0));
    dot8 = fmaf(x8.x, d[4 * i + 2], fmaf(x8.y, d[4 * i + 3], dot8));
  }
  dot0 = quad_sum(dot0);
  dot8 = quad_sum(dot8);
}

// In-place softmax of `unit` times the m logits of both rows, in one section or two. Calls `halfway` between the maximum and the
// exponentials.
struct Nothing {
  __device__ void operator()() const {}
};
template <int kSections, typename Halfway = Nothing>
__device__ __forceinline__ void softmax_rows(float (&d)[kSections][64], float unit, int m, Halfway halfway = {}) {
  if (m == kSections * kM - 1) {
    mask_slots<true>(d[kSections - 1], m - (kSections - 1) * kM);
  } else {
    mask_slots<false>(d[kSections - 1], m - (kSections - 1) * kM);
  }
  float top0 = -INFINITY;
  float top8 = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSections * 64; i += 4) {
    const float* x = &d[i / 64][i % 64];
    top0 = fmaxf(top0, fmaxf(x[0], x[1]));
    top8 = fmaxf(top8, fmaxf(x[2], x[3]));
  }
#pragma unroll
  for (int x = 1; x < 4; x *= 2) {
    top0 = fmaxf(top0, __shfl_xor_sync(0xFFFFFFFF, top0, x));
    top8 = fmaxf(top8, __shfl_xor_sync(0xFFFFFFFF, top8, x));
  }
  halfway();
  const float rate = unit * 1.4426950408889634F;
  float sum0 = 0.0F;
  float sum8 = 0.0F;
  top0 *= -rate;
  top8 *= -rate;
#pragma unroll
  for (int i = 0; i < kSections * 64; i += 4) {
    float* x = &d[i / 64][i % 64];
    x[0] = power_of_2(fmaf(x[0], rate, top0));
    x[1] = power_of_2(fmaf(x[1], rate, top0));
    x[2] = power_of_2(fmaf(x[2], rate, top8));
    x[3] = power_of_2(fmaf(x[3], rate, top8));
    sum0 += x[0] + x[1];
    sum8 += x[2] + x[3];
  }
  const float factor0 = __fdividef(1.0F, quad_sum(sum0));
  const float factor8 = __fdividef(1.0F, quad_sum(sum8));
#pragma unroll
  for (int section = 0; section < kSections; ++section) scale_rows(d[section], factor0, factor8);
}

// Scales the rows of a 64 x 128 accumulator and converts them to half precision as A operand.
__device__ __forceinline__ void pack_halves(const float (&d)[64], float factor0, float factor8, uint32_t (&a)[8][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    a[i / 2][i % 2 * 2] = pack_half(d[4 * i] * factor0, d[4 * i + 1] * factor0);
    a[i / 2][i % 2 * 2 + 1] = pack_half(d[4 * i + 2] * factor8, d[4 * i + 3] * factor8);
  }
}

// b = a times a power of two, in half precision.
__device__ __forceinline__ void scale_halves(const uint32_t (&a)[8][4], float factor, uint32_t (&b)[8][4]) {
  const __half2 x = __float2half2_rn(factor);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const __half2 y = __hmul2(reinterpret_cast<const __half2&>(a[i / 4][i % 4]), x);
    b[i / 4][i % 4] = reinterpret_cast<const uint32_t&>(y);
  }
}

// Stores or loads a warp's 16-bit rows of a pair of panels. The address is recomputed, otherwise it stays live until the next use.
template <typename Do>
__device__ __forceinline__ void for_blocks(uint32_t pair, int strip, Do at) {
  const uint32_t lane = anew(threadIdx.x) % 32;
  const uint32_t first = pair + (strip + lane % 16) * kRowBytes + ((lane / 16 ^ (lane & 7)) << 4);
#pragma unroll
  for (int kk = 0; kk < 8; ++kk) at(kk, (first ^ (kk % 4 << 5)) + kk / 4 * kPanelBytes);
}
__device__ __forceinline__ void put_blocks(uint32_t pair, int strip, const uint32_t (&a)[8][4]) {
  for_blocks(pair, strip, [&](int kk, uint32_t place) { store_blocks(place, a[kk][0], a[kk][1], a[kk][2], a[kk][3]); });
}
__device__ __forceinline__ void get_blocks(uint32_t pair, int strip, uint32_t (&a)[8][4]) {
  for_blocks(pair, strip, [&](int kk, uint32_t place) { load_blocks(a[kk], place); });
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
