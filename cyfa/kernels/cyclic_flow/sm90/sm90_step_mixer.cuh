// The mixer part of the fused decoding step (StepMixer of sm90_step.h): short convolutions of q, k and v, the gates, the output gate and
// the gated norm, from one row of the fused projection. The operations and their order are those of the kernels in cyfa/kernels/rowwise, so
// results are bitwise equal. Included by sm90_step.cu and sm90_step_held.cu. Overwrites past and gate of StepMixer, and o through
// GatedNorm.
#pragma once

#include <cooperative_groups.h>
#include <cuda_bf16.h>

#include "cyfa/kernels/cyclic_flow/projection_layout.h"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step.h"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_states.cuh"
#include "cyfa/kernels/dense/gemv_sm90_tile.cuh"
#include "cyfa/kernels/rowwise/vector.cuh"
#include "cyfa/kernels/sm90/launch.cuh"

namespace cyfa::cyclic_flow::step {

// One head of one sequence, and the block's columns of its values.
struct OfHead {
  int batch, head, heads, K, V, first_value, values;

  __device__ ProjectionLayout layout(const StepMixer& s) const { return {heads, K, V, static_cast<int>(s.rank)}; }
};

// One column of a short convolution. The constructor loads what does not depend on the preceding launch.
class ConvColumn {
 public:
  // which: q, k or v. column: index within [width]. first: first column of `which` in a row of x.
  __device__ ConvColumn(const StepMixer& s, int which, int batch, int column, int first, int width)
      : x_(static_cast<const __nv_bfloat16*>(s.x) + batch * s.stride + first + column), width_(width) {
    pasts_ = static_cast<int>(s.taps) - 1;
    past_at_ = s.past[which] + static_cast<int64_t>(batch) * pasts_ * width + column;
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

  // The convolution's output, rounded to bf16 as if stored.
  __device__ float value() {
    now_ = __bfloat162float(*x_);
    float sum = fmaf(now_, weight_[kPasts], bias_);
#pragma unroll
    for (int w = 0; w < kPasts; ++w) {
      if (w < pasts_) sum = fmaf(past_[w], weight_[w], sum);
    }
    return __bfloat162float(__float2bfloat16_rn(sum));
  }

  // Shifts the past inputs. Call after value(), and after every other block that reads this column's past has done so.
  __device__ void move_on() const {
#pragma unroll
    for (int w = 1; w < kPasts; ++w) {
      if (w < pasts_) past_at_[(w - 1) * width_] = past_[w];
    }
    if (pasts_ > 0) past_at_[(pasts_ - 1) * width_] = now_;
  }

  // Keep what move_on() writes in shared memory instead of registers: between value() and move_on().
  __device__ void put_aside(float (*to)[kThreads]) const {
#pragma unroll
    for (int w = 1; w < kPasts; ++w) to[w - 1][threadIdx.x] = past_[w];
    to[kPasts - 1][threadIdx.x] = now_;
  }
  __device__ void take_up(const float (*from)[kThreads]) {
#pragma unroll
    for (int w = 1; w < kPasts; ++w) past_[w] = from[w - 1][threadIdx.x];
    now_ = from[kPasts - 1][threadIdx.x];
  }

  static constexpr int kPasts = StepMixer::kMaxTaps - 1;

 private:
  const __nv_bfloat16* x_;
  float* past_at_;
  int width_, pasts_;
  float past_[kPasts] = {}, weight_[kPasts + 1] = {}, bias_ = 0.0F, now_ = 0.0F;
};

// The gates of one head.
class HeadGates {
 public:
  __device__ HeadGates(const StepMixer& s, int batch, int head, int heads, int64_t first)
      : x_(static_cast<const __nv_bfloat16*>(s.x) + batch * s.stride + first + head),
        heads_(heads),
        dt_bias_(s.dt_bias[head]),
        rate_(s.A_log[head]),
        b_bias_(s.b_bias[head]),
        d_bias_(s.d_bias[head]) {}

  __device__ float log_alpha() const { return -expf(rate_) * rowwise::softplus(__bfloat162float(x_[0]) + dt_bias_); }
  __device__ float beta() const { return rowwise::exact_sigmoid(__bfloat162float(x_[heads_]) + b_bias_); }
  __device__ float delta() const { return rowwise::exact_sigmoid(__bfloat162float(x_[2 * heads_]) + d_bias_); }

 private:
  const __nv_bfloat16* x_;
  int heads_;
  float dt_bias_, rate_, b_bias_, d_bias_;
};

constexpr int kMaxRank = 256;  // of the output gate

// Rows `first` to first + 7 of the output gate for all sequences, by one warp. first_column: column of the gate's first factor in a row of
// x.
__device__ inline void write_gate(const StepMixer& s, int64_t batch, int64_t first, int64_t width, int64_t first_column) {
  constexpr int kChunks = kMaxRank / dense::kChunk;
  const int chunks = static_cast<int>(s.rank) / dense::kChunk;
  const int64_t row = min(first + dense::tile_row(), width - 1);
  const auto* from = static_cast<const __nv_bfloat16*>(s.gate_second) + row * s.rank;
  const uint4* weights = reinterpret_cast<const uint4*>(from) + dense::tile_quarter();
  uint4 held[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (c < chunks) held[c] = dense::load_weights(weights + 4 * c);
  }
  sm90::let_next_launch_begin();
  sm90::wait_for_earlier_launch();
  const bool has_row = dense::tile_row() < batch, has_high = dense::tile_row() + dense::kTileRows < batch;
  const uint4* x = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(s.x) + dense::tile_row() * s.stride + first_column) +
                   dense::tile_quarter();
  const uint4* high = x + dense::kTileRows * s.stride / 8;
  float4 sums = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    uint4 of_row = make_uint4(0, 0, 0, 0), of_high = of_row;
    if (c < chunks && has_row) of_row = x[4 * c];
    if (c < chunks && has_high) of_high = high[4 * c];
    if (c < chunks) dense::multiply_chunk(sums, of_row, of_high, held[c]);
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

// A thread's inputs from the projections: a column of q, of k and of the block's columns of v, and the head's gates.
struct MixerInputs {
  ConvColumn q, k, v;
  HeadGates gates;

  __device__ void move_keys_on() const {
    q.move_on();
    k.move_on();
  }

  using Aside = float[3][ConvColumn::kPasts][kThreads];
  __device__ void put_aside(Aside& to) const {
    q.put_aside(to[0]);
    k.put_aside(to[1]);
    v.put_aside(to[2]);
  }
  __device__ void move_on_from(const Aside& from) {
    q.take_up(from[0]);
    k.take_up(from[1]);
    v.take_up(from[2]);
    move_keys_on();
    v.move_on();
  }

  __device__ MixerInputs(const StepMixer& s, const OfHead& at)
      : q(s, 0, at.batch, at.head * at.K + own(at.K), at.layout(s).q(), at.heads * at.K),
        k(s, 1, at.batch, at.head * at.K + own(at.K), at.layout(s).k(), at.heads * at.K),
        v(s, 2, at.batch, at.head * at.V + at.first_value + own(at.values), at.layout(s).v(), at.heads * at.V),
        gates(s, at.batch, at.head, at.heads, at.layout(s).a()) {}

 private:
  // Threads without a column load the last one.
  static __device__ int own(int columns) { return min(static_cast<int>(threadIdx.x), columns - 1); }
};
struct NoMixerInputs {
  __device__ NoMixerInputs(const StepMixer&, const OfHead&) {}
};

// RMSNorm(o) * sigmoid(gate) for this block's columns. V is a multiple of 64 up to 256, so eight adjacent columns belong to one block.
struct GatedNorm {
  float gate = 0.0F, weight = 0.0F;  // of this thread's column

  // Loads them ahead of their use.
  __device__ void load(const StepMixer& s, const OfHead& at) {
    const int tid = static_cast<int>(threadIdx.x);
    if (tid >= at.values) return;
    gate = __bfloat162float(static_cast<const __nv_bfloat16*>(s.gate)[first_of(at) + tid]);
    weight = s.o_norm_weight[at.first_value + tid];
  }

  // o: this thread's column. eight(column): pointer to that column and the next seven of the head.
  template <class Eight>
  __device__ void write(const StepMixer& s, const OfHead& at, float o, const Eight& eight, __nv_bfloat16* to) const {
    constexpr float kSmallest = 1.17549435e-38F;
    const int tid = static_cast<int>(threadIdx.x);
    const int first = rowwise::kVector * (tid % 32);
    float sum = 0.0F;
    if (first < at.V) {
      const float* there = eight(first);
#pragma unroll
      for (int i = 0; i < rowwise::kVector; ++i) sum += there[i] * there[i];
    }
    const float rate = rsqrtf(fmaxf(rowwise::warp_sum(sum) / static_cast<float>(at.V) + s.o_norm_eps, kSmallest));
    if (tid < at.values) to[first_of(at) + tid] = __float2bfloat16_rn(o * (rate * weight) * rowwise::sigmoid(gate));
  }

 private:
  // The block's first column in [B, H V].
  static __device__ int64_t first_of(const OfHead& at) {
    return (static_cast<int64_t>(at.batch) * at.heads + at.head) * at.V + at.first_value;
  }
};

}  // namespace cyfa::cyclic_flow::step
