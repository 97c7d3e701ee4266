// What the decoding step makes of a row of the mixer's projections (StepStreams of step_cuda.h): convolved q, k, v, the gates, the output's
// gate. The same operations in the same order as the kernels of cyfa/kernels/rows, so the same bits.
#pragma once

#include <cuda_bf16.h>

#include "cyfa/kernels/cyclic_flow/step_cuda.h"
#include "cyfa/kernels/dense/gemv_tile.cuh"
#include "cyfa/kernels/hopper/launch.cuh"

namespace cyfa::cyclic_flow {

// One column of a convolution. What does not depend on the launch before is read at construction.
class ConvColumn {
 public:
  // which: q, k or v; column: of its [width]; first: of its columns in a row of x.
  __device__ ConvColumn(const StepStreams& s, int which, int64_t batch, int64_t column, int64_t first, int64_t width)
      : x_(static_cast<const __nv_bfloat16*>(s.x) + batch * s.stride + first + column), width_(static_cast<int>(width)) {
    pasts_ = static_cast<int>(s.taps) - 1;
    past_at_ = s.past[which] + batch * pasts_ * width + column;
    const float* weight = s.conv[which] + column * s.taps;
    if (s.conv_bias[which] != nullptr) bias_ = s.conv_bias[which][column];
#pragma unroll
    for (int w = 0; w < kPasts; ++w) {
      if (w >= pasts_) break;
      past_[w] = past_at_[w * width_];
      weight_[w] = weight[w];
    }
    weight_[kPasts] = weight[pasts_];
  }

  // The convolution's output, rounded as it would be in memory.
  __device__ float value() {
    now_ = __bfloat162float(*x_);
    float sum = fmaf(now_, weight_[kPasts], bias_);
#pragma unroll
    for (int w = 0; w < kPasts; ++w) {
      if (w < pasts_) sum = fmaf(past_[w], weight_[w], sum);
    }
    return __bfloat162float(__float2bfloat16_rn(sum));
  }

  // After value(), and after every other block that reads this column's past has done so.
  __device__ void move_on() const {
#pragma unroll
    for (int w = 1; w < kPasts; ++w) {
      if (w < pasts_) past_at_[(w - 1) * width_] = past_[w];
    }
    if (pasts_ > 0) past_at_[(pasts_ - 1) * width_] = now_;
  }

 private:
  static constexpr int kPasts = StepStreams::kMaxTaps - 1;
  const __nv_bfloat16* x_;
  float* past_at_;
  int width_, pasts_;
  float past_[kPasts] = {}, weight_[kPasts + 1] = {}, bias_ = 0.0F, now_ = 0.0F;
};

// The gates of one head.
class HeadGates {
 public:
  __device__ HeadGates(const StepStreams& s, int64_t batch, int64_t head, int64_t heads, int64_t first)
      : x_(static_cast<const __nv_bfloat16*>(s.x) + batch * s.stride + first + head),
        heads_(static_cast<int>(heads)),
        dt_bias_(s.dt_bias[head]),
        rate_(s.A_log[head]),
        b_bias_(s.b_bias[head]),
        d_bias_(s.d_bias[head]) {}

  __device__ float log_alpha() const { return -expf(rate_) * softplus(__bfloat162float(x_[0]) + dt_bias_); }
  __device__ float beta() const { return sigmoid(__bfloat162float(x_[heads_]) + b_bias_); }
  __device__ float delta() const { return sigmoid(__bfloat162float(x_[2 * heads_]) + d_bias_); }

 private:
  static __device__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
  static __device__ float softplus(float x) { return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x))); }

  const __nv_bfloat16* x_;
  int heads_;
  float dt_bias_, rate_, b_bias_, d_bias_;
};

constexpr int kMaxRank = 256;  // of the output's gate

// Rows `first` to first + 7 of the output's gate, of all sequences, by a warp. first_column: of the gate's first factor in a row of x.
__device__ inline void write_gate(const StepStreams& s, int64_t batch, int64_t first, int64_t width, int64_t first_column) {
  constexpr int kChunks = kMaxRank / dense::kChunk;
  const int chunks = static_cast<int>(s.rank) / dense::kChunk;
  const int64_t row = min(first + dense::tile_row(), width - 1);
  const auto* from = static_cast<const __nv_bfloat16*>(s.gate_up) + row * s.rank;
  const uint4* weights = reinterpret_cast<const uint4*>(from) + dense::tile_quarter();
  uint4 held[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (c < chunks) held[c] = dense::load_weights(weights + 4 * c);
  }
  hopper::let_next_launch_begin();
  hopper::wait_for_earlier_launch();
  const bool has_row = dense::tile_row() < batch, has_high = dense::tile_row() + dense::kTileRows < batch;
  const uint4* x = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(s.x) + dense::tile_row() * s.stride + first_column) +
                   dense::tile_quarter();
  const uint4* high = x + dense::kTileRows * s.stride / 8;
  float4 sums = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const uint4 none = make_uint4(0, 0, 0, 0);
    if (c < chunks) dense::multiply_chunk(sums, has_row ? x[4 * c] : none, has_high ? high[4 * c] : none, held[c]);
  }
  const auto* bias = static_cast<const __nv_bfloat16*>(s.gate_bias);
  auto* to = static_cast<__nv_bfloat16*>(s.gate) + dense::tile_row() * width;
  const float two[2] = {sums.x, sums.y}, high_two[2] = {sums.z, sums.w};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t column = first + 2 * dense::tile_quarter() + i;
    if (!has_row || column >= width) continue;
    const float by = __bfloat162float(bias[column]);
    to[column] = __float2bfloat16_rn(two[i] + by);
    if (has_high) to[dense::kTileRows * width + column] = __float2bfloat16_rn(high_two[i] + by);
  }
}

}  // namespace cyfa::cyclic_flow
