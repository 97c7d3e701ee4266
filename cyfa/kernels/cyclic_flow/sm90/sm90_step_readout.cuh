// Clock and readout of the decoding step. Both are small and computed redundantly by every block of a cluster. temporal_write is used by
// both step kernels, read_out by sm90_step.cu only; sm90_step_held.cu has its own with the table in registers. Writes shared memory only.
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_states.cuh"
#include "cyfa/kernels/rowwise/vector.cuh"

namespace cyfa::cyclic_flow::step {

constexpr int kMaxSlots = 256;
static_assert(kMaxSlots / 2 <= kThreads, "a thread takes at most one frequency");

// (x.x + i x.y) (unit.x + i unit.y)
__device__ inline float2 rotated(float2 x, float2 unit) { return make_float2(x.x * unit.x - x.y * unit.y, x.x * unit.y + x.y * unit.x); }

__device__ inline float warp_max(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, lane));
  return x;
}

// Step 1: cos and sin of every frequency, and beta U(-clock) b. In double, the clock is reduced modulo m, which is exact, and j clock / m
// to at most half a turn: a clock of a million loses no accuracy.
__device__ inline void temporal_write(int M, double clock, float beta, float2* trig, float2* write) {
  const double m = static_cast<double>(M - 1);
  const double of_one = 1.0 / m;
  const double phase = (clock - m * floor(clock * of_one)) * of_one;
  const int j = static_cast<int>(threadIdx.x);
  if (j < M / 2) {
    const double turns = static_cast<double>(j) * phase;
    float2 unit;
    sincospif(2.0F * static_cast<float>(turns - rint(turns)), &unit.y, &unit.x);
    const float amplitude = beta * (rsqrtf(static_cast<float>(M - 1)) * (j == 0 ? 1.0F : 1.41421356F));
    trig[j] = unit;
    write[j] = make_float2(amplitude * unit.x, j == 0 ? 0.0F : -amplitude * unit.y);
  }
}

// Step 3: read = U(-clock) table^T softmax(table scores) over the m active rows. Each warp takes every eighth row: logits, their
// exponentials relative to the warp's maximum, and the weighted sum of its rows; then the warps' sums are rescaled and added in order.
// `read` is visible to the whole block on return. partial: [kWarps, M] plus two numbers per warp. The table has M readable rows; those from
// m on are ignored.
__device__ __forceinline__ void read_out(const float* table, int M, const float* scores, const float2* trig, float4* partial,
                                         float2* read) {
  static_assert(kMaxSlots / kWarps <= 32, "a warp has at most a row a lane");
  constexpr int kAtOnce = 4;            // rows reduced over the lanes together
  constexpr int kLanes = 32 / kAtOnce;  // lanes that end up with the same row's sum
  const int m = M - 1;
  const int columns = M / 4;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int own = (M + kWarps - 1) / kWarps;  // rows warp, warp + kWarps, ...; the last one is repeated as padding
  const bool even = M % (kWarps * kAtOnce) == 0;
  const auto row_at = [&](int n) { return even ? warp + n * kWarps : min(warp + n * kWarps, M - 1); };
  const float4* table4 = reinterpret_cast<const float4*>(table);
  const float4* scores4 = reinterpret_cast<const float4*>(scores);

  float logit = -INFINITY;  // of the warp's row `lane`
#pragma unroll 1
  for (int first = 0; first < own; first += kAtOnce) {
    float sum[kAtOnce] = {};
#pragma unroll 1
    for (int c = lane; c < columns; c += 32) {
      const float4 score = scores4[c];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum[i] = dot4(table4[row_at(first + i) * columns + c], score, sum[i]);
    }
    // In each step, the two lanes of a pair each keep half of the rows; finally lane l has row l / kLanes.
#pragma unroll
    for (int level = 0; (kAtOnce >> level) > 1; ++level) {
      const int half = kAtOnce >> (level + 1), distance = 16 >> level;
      const bool upper = (lane & distance) != 0;
#pragma unroll
      for (int i = 0; i < kAtOnce / 2; ++i) {
        if (i >= half) break;
        const float given = __shfl_xor_sync(0xFFFFFFFFU, upper ? sum[i] : sum[i + half], distance);
        sum[i] = (upper ? sum[i + half] : sum[i]) + given;
      }
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum[0] += __shfl_xor_sync(0xFFFFFFFFU, sum[0], distance);
    const float there = __shfl_sync(0xFFFFFFFFU, sum[0], lane % kAtOnce * kLanes);
    if (lane / kAtOnce * kAtOnce == first && warp + lane * kWarps < m) logit = there;
  }
  const float top = warp_max(logit);
  const float power = top > -INFINITY ? expf(logit - top) : 0.0F;
  const float total = rowwise::warp_sum(power);
  float2* scales = reinterpret_cast<float2*>(partial + kWarps * columns);
  if (lane == 0) scales[warp] = make_float2(top, total);
#pragma unroll 1
  for (int c = lane; c - lane < columns; c += 32) {
    float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    const int at = min(c, columns - 1);
#pragma unroll kAtOnce
    for (int r = 0; r < own; ++r) sum = fma4(__shfl_sync(0xFFFFFFFFU, power, r), table4[row_at(r) * columns + at], sum);
    if (c < columns) partial[warp * columns + c] = sum;
  }
  __syncthreads();

  const float2* partial2 = reinterpret_cast<const float2*>(partial);
  const int j = static_cast<int>(threadIdx.x);
  const float2 scale = scales[lane % kWarps];
  const float highest = warp_max(scale.x);
  const float of_warp = scale.x == -INFINITY ? 0.0F : expf(scale.x - highest);  // each lane computes the factor of one warp
  float2 sum = make_float2(0.0F, 0.0F);
  float whole = 0.0F;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float factor = __shfl_sync(0xFFFFFFFFU, of_warp, w);
    const float2 part = partial2[w * (M / 2) + min(j, M / 2 - 1)];
    sum = make_float2(fmaf(factor, part.x, sum.x), fmaf(factor, part.y, sum.y));
    whole = fmaf(factor, __shfl_sync(0xFFFFFFFFU, scale.y, w), whole);
  }
  if (j < M / 2) {
    const float inverse = __fdividef(1.0F, whole);
    read[j] = rotated(make_float2(sum.x * inverse, sum.y * inverse), make_float2(trig[j].x, -trig[j].y));
  }
  __syncthreads();
}

}  // namespace cyfa::cyclic_flow::step
