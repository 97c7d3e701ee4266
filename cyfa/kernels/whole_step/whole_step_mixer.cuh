// The mixer's part of the whole step: a block of keys, a block of values, and the warp that computes gates and clock for both
// (eq:cyfa-absolute-recurrence, eq:cyfa-absolute-readout). Included by whole_step_sm90.cu only.
#pragma once

#include "cyfa/kernels/cyclic_flow/projection_layout.h"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_step_readout.cuh"
#include "cyfa/kernels/whole_step/whole_step_product.cuh"

namespace cyfa::whole_step {

using cyclic_flow::ProjectionLayout;
using cyclic_flow::step::dot4;
using cyclic_flow::step::fma4;
using cyclic_flow::step::rotated;
using cyclic_flow::step::scaled;

constexpr int kMaxPast = 3;  // taps of a convolution before the newest one

__device__ __forceinline__ ProjectionLayout layout_of(const Sizes& n) { return {n.H, n.K, n.V, n.rank()}; }

// One column of a short convolution. The constructor loads what does not depend on the token, and settle() sums it up.
class Convolution {
 public:
  Convolution() = default;
  // which: q, k or v. column: in [width].
  __device__ __forceinline__ Convolution(const Params& p, const Layer& layer, int which, int column, int width) {
    const int pasts = p.n.taps - 1;
    const float *at = layer.past[which] + column, *weight = layer.conv[which] + column * p.n.taps;
    bias_ = layer.conv_bias[which] != nullptr ? __ldg(layer.conv_bias[which] + column) : 0.0F;
#pragma unroll
    for (int w = 0; w < kMaxPast; ++w) {
      const bool has = w < pasts;
      past_[w] = has ? __ldcg(at + w * width) : 0.0F;
      weight_[w] = has ? __ldg(weight + w) : 0.0F;
    }
    newest_ = __ldg(weight + pasts);
  }
  __device__ __forceinline__ void settle() {
#pragma unroll
    for (int w = 0; w < kMaxPast; ++w) bias_ = fmaf(past_[w], weight_[w], bias_);
  }
  __device__ __forceinline__ float of(float now) const { return fmaf(now, newest_, bias_); }
  // Shifts the past inputs, after every block that reads them has done so.
  static __device__ __forceinline__ void move_on(const Params& p, const Layer& layer, int which, int column, int width, float now) {
    const int pasts = p.n.taps - 1;
    float* const at = layer.past[which] + column;
    float past[kMaxPast];
#pragma unroll
    for (int w = 1; w < kMaxPast; ++w) past[w] = w < pasts ? __ldcg(at + w * width) : 0.0F;
#pragma unroll
    for (int w = 1; w < kMaxPast; ++w) {
      if (w < pasts) at[(w - 1) * width] = past[w];
    }
    if (pasts > 0) at[(pasts - 1) * width] = now;
  }

 private:
  float past_[kMaxPast] = {}, weight_[kMaxPast] = {}, newest_ = 0.0F, bias_ = 0.0F;
};

// The word with column `column` of y, and the column in it.
__device__ __forceinline__ const uint64_t* word_of_y(const Block& b, int column) { return b.from(b.words.y + column / 2); }
__device__ __forceinline__ float column_of(uint64_t word, int column) {
  const float2 two = unpack(low(word));
  return (column & 1) == 0 ? two.x : two.y;
}

// Sums of kCount (a power of two) numbers over the lanes that are equal modulo kApart. Lane l receives that of number l / (32 / kCount).
template <int kCount, int kApart = 1>
__device__ __forceinline__ float fold(float (&x)[kCount]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int level = 0; (kCount >> level) > 1; ++level) {  // each lane of a pair keeps half of the numbers
    const int half = kCount >> (level + 1), distance = 16 >> level;
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= half) break;
      const float given = __shfl_xor_sync(0xFFFFFFFFU, upper ? x[i] : x[i + half], distance);
      x[i] = (upper ? x[i + half] : x[i]) + given;
    }
  }
#pragma unroll
  for (int distance = 16 / kCount; distance >= kApart; distance /= 2) x[0] += __shfl_xor_sync(0xFFFFFFFFU, x[0], distance);
  return x[0];
}

// What a consumer reads for the mixer before the layer's input arrives: its part of the state, and what belongs to its key row or column of
// values.
template <int kShare>
struct MixerInputs {
  float4 state[2 * kShare];
  float weight[2];      // keys: of the norms of q and k; values: of the output's norm, bias of the gate
  Convolution conv[2];  // keys: of q and k; values, in the last warp: of v

  __device__ __forceinline__ void settle() {
    conv[0].settle();
    conv[1].settle();
  }
};

// A block of keys: its slots of state_k are alpha S + k w^T, and their scores are S^T q. A thread has one key row. Scores follow from sums
// over the state before the update and are sent first:
//   score = |q| (alpha sum q S + |k| w sum q k), where |q| and |k| stand for the factors of the norms.
template <int kShare>
struct KeyPlace {
  static constexpr int kSlots = 8 * kShare;
  int row, column, first;  // key row in its head and in [H K], first slot
  bool has;
  float4* home;

  __device__ __forceinline__ KeyPlace(const Block& b, const Layer& layer, const Role& role) {
    const Sizes& n = b.p.n;
    row = min(static_cast<int>(threadIdx.x), n.K - 1);
    column = role.head * n.K + row;
    first = role.part * kSlots;
    has = static_cast<int>(threadIdx.x) < n.K;
    home = reinterpret_cast<float4*>(layer.state_k + static_cast<int64_t>(column) * n.M + first);
  }
};

template <int kShare>
__device__ __forceinline__ void load_keys(const Block& b, const Layer& layer, const Role& role, MixerInputs<kShare>& inputs) {
  const KeyPlace<kShare> place(b, layer, role);
#pragma unroll
  for (int i = 0; i < 2 * kShare; ++i) inputs.state[i] = __ldcg(place.home + i);
  inputs.conv[0] = Convolution(b.p, layer, 0, place.column, b.p.n.H * b.p.n.K);
  inputs.conv[1] = Convolution(b.p, layer, 1, place.column, b.p.n.H * b.p.n.K);
  inputs.weight[0] = layer.q_norm != nullptr ? __ldg(layer.q_norm + place.row) : 1.0F;
  inputs.weight[1] = layer.k_norm != nullptr ? __ldg(layer.k_norm + place.row) : 1.0F;
}

template <int kShare>
__device__ __forceinline__ void step_keys(Block& b, const Layer& layer, const Role& role, const MixerInputs<kShare>& inputs) {
  constexpr int kSlots = 8 * kShare;
  const Params& p = b.p;
  const Sizes& n = p.n;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, parity = b.layer & 1;
  const KeyPlace<kShare> place(b, layer, role);
  const bool has = place.has;
  const int first = place.first;
  float4* const home = place.home;
  const auto& state = inputs.state;
  const int q_at = layout_of(n).q() + place.column, k_at = layout_of(n).k() + place.column;
  uint64_t words[2];
  const uint64_t* const at[2] = {word_of_y(b, q_at), word_of_y(b, k_at)};
  b.mark(5);
  b.receive(words, at, kProjections);
  b.mark(6);
  const float q_raw = has ? inputs.conv[0].of(column_of(words[0], q_at)) : 0.0F,
              k_raw = has ? inputs.conv[1].of(column_of(words[1], k_at)) : 0.0F;
  const float q = q_raw * inputs.weight[0], k = k_raw * inputs.weight[1];
  float sums[kSlots], of_both[4] = {q_raw * q_raw, k_raw * k_raw, q * k, 0.0F};
#pragma unroll
  for (int i = 0; i < kSlots / 4; ++i) {
    sums[4 * i] = q * state[i].x;
    sums[4 * i + 1] = q * state[i].y;
    sums[4 * i + 2] = q * state[i].z;
    sums[4 * i + 3] = q * state[i].w;
  }
  const float slot = fold(sums), both = fold(of_both);
  if (lane % (32 / kSlots) == 0) b.s.slots[parity][warp][lane / (32 / kSlots)] = slot;
  if (lane % 8 == 0) reinterpret_cast<float*>(&b.s.norms[parity][warp])[lane / 8] = both;
  b.all_but_feeder_meet();

  float4 whole = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float4 more = b.s.norms[parity][w];
    whole = make_float4(whole.x + more.x, whole.y + more.y, whole.z + more.z, 0.0F);
  }
  const float width = __fdividef(1.0F, static_cast<float>(n.K));
  const float k_factor = layer.k_norm != nullptr ? rsqrtf(fmaf(whole.y, width, p.qk_eps)) : 1.0F, alpha = b.s.alpha[parity];
  const float* const write = reinterpret_cast<const float*>(b.s.write[parity]) + first;
  if (tid < kSlots) {
    float sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += b.s.slots[parity][w][tid];
    const float q_factor = p.scale * (layer.q_norm != nullptr ? rsqrtf(fmaf(whole.x, width, p.qk_eps)) : 1.0F);
    const float score = q_factor * fmaf(alpha, sum, k_factor * write[tid] * whole.z);
    send(b.to(b.words.scores + role.head * n.M + first + tid), b.epoch(), __float_as_uint(score));
  }
  b.mark(7);
  if (!has) return;
#pragma unroll
  for (int i = 0; i < kSlots / 4; ++i) {
    home[i] = fma4(k * k_factor, reinterpret_cast<const float4*>(write)[i], scaled(alpha, state[i]));
  }
}

// Maximum over a warp. Floats compare like integers once the low 31 bits of negative numbers are inverted.
__device__ __forceinline__ float greatest(float x) {
  const auto turned = [](int bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); };
  return __int_as_float(turned(__reduce_max_sync(0xFFFFFFFFU, turned(__float_as_int(x)))));
}

// A warp's rows of the readout table, warp, warp + 8, ...; four columns per lane.
constexpr int kTableRows = kMaxSlots / kWarps;

// Logits of the warp's rows, from scores in four columns per lane; lanes 2 n and 2 n + 1 receive that of row n.
__device__ __forceinline__ float logit_of(const float4 (&table)[kTableRows], float4 scores, int slots) {
  float sum[kTableRows];
#pragma unroll
  for (int i = 0; i < kTableRows; ++i) sum[i] = dot4(table[i], scores, 0.0F);
  const float logit = fold(sum);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return static_cast<int>(threadIdx.x) / 32 + lane / 2 * kWarps < slots - 1 ? logit : -INFINITY;
}

// A block of values: its columns of the output gate, then state_v = alpha S + w v^T, then the readout, computed by every such block for
// itself, and the columns of the output. A thread has kShare pairs of slots in four columns.
template <int kShare>
struct ValuePlace {
  static constexpr int kColumns = 16 * kShare, kFours = kColumns / 4, kPairsAtOnce = kConsumers / kFours;
  static_assert(kShare * kPairsAtOnce == kMaxSlots / 2);
  int column, four, pair;  // first column in [H V], four columns and pair of slots of this thread
  int pairs;
  float4* home_;
  int64_t slot_;

  __device__ __forceinline__ ValuePlace(const Block& b, const Layer& layer, const Role& role) {
    const Sizes& n = b.p.n;
    column = role.head * n.V + role.part * kColumns;
    four = static_cast<int>(threadIdx.x) % kFours;
    pair = static_cast<int>(threadIdx.x) / kFours;
    pairs = n.M / 2;
    slot_ = n.V / 4;
    home_ =
        reinterpret_cast<float4*>(layer.state_v + (static_cast<int64_t>(role.head) * n.M + 2 * pair) * n.V + role.part * kColumns) + four;
  }
  __device__ __forceinline__ bool has(int i) const { return pair + i * kPairsAtOnce < pairs; }
  __device__ __forceinline__ float4* home(int i, int odd) const { return home_ + (2 * i * kPairsAtOnce + odd) * slot_; }
};

template <int kShare>
__device__ __forceinline__ void load_values(const Block& b, const Layer& layer, const Role& role, MixerInputs<kShare>& inputs) {
  constexpr int kColumns = 16 * kShare;
  const Sizes& n = b.p.n;
  const ValuePlace<kShare> place(b, layer, role);
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      inputs.state[2 * i + odd] = place.has(i) ? __ldcg(place.home(i, odd)) : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    }
  }
  const int own = min(own_lane(), kColumns - 1);
  inputs.weight[0] = __ldg(layer.o_norm + role.part * kColumns + own);
  inputs.weight[1] = __bfloat162float(static_cast<const __nv_bfloat16*>(layer.gate_bias)[place.column + own]);
  if (own_warp() == kWarps - 1) inputs.conv[0] = Convolution(b.p, layer, 2, place.column + own, n.H * n.V);
}

template <int kShare>
__device__ __forceinline__ void step_values(Block& b, const Layer& layer, const Role& role, MixerInputs<kShare>& inputs) {
  constexpr int kColumns = 16 * kShare, kFours = kColumns / 4, kPairsAtOnce = kConsumers / kFours;
  constexpr int kGateTiles = kColumns / kTileRows, kGateUnits = kMaxWidth / kUnitColumns;
  static_assert(kGateTiles * kGateUnits <= kWarps);  // a warp has one unit of one tile at most
  const Params& p = b.p;
  const Sizes& n = p.n;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, parity = b.layer & 1;
  const ValuePlace<kShare> place(b, layer, role);
  const int column = place.column, four = place.four, pair = place.pair;
  auto& state = inputs.state;

  // Weights of the gate, then the table: both are in registers before y arrives.
  const int unit = warp % kGateUnits, tile = warp / kGateUnits;
  const bool has_gate = unit * kUnitColumns < n.rank() && tile < kGateTiles, has_v = warp == kWarps - 1;
  UnitWeights gate_weights = {};
  b.take(1);
  if (has_gate) gate_weights = UnitPlace(n.rank(), 0, unit).load_one(b, tile * kTileRows * 2 * n.rank());
  b.give_back(1);
  const int table_stages = stages_of(n.M * n.M * 4);
  b.take(table_stages);
  float4 table[kTableRows];
#pragma unroll
  for (int i = 0; i < kTableRows; ++i) {
    // Of rows and columns past the end, any others of the table: their weights and scores are zero.
    const uint4 bits = b.read((min(warp + i * kWarps, n.M - 1) * n.M + min(4 * lane, n.M - 4)) * 4);
    table[i] = make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w));
  }
  b.give_back(table_stages);
  b.mark(5);
  float v_now = 0.0F;
  if (has_gate) {
    ulonglong2 words[1];
    const int gate_column = unit * kUnitColumns + 4 * lane;
    const uint64_t* const at[1] = {word_of_y(b, layout_of(n).gate() + min(gate_column, n.rank() - 4))};
    b.receive(words, at, kProjections);
    store_unit(b, 0, gate_column < n.rank() ? make_uint2(low(words[0].x), low(words[0].y)) : make_uint2(0, 0));
    __syncwarp();
    const UnitInputs x = inputs_of(b, 0);
    float4 sums = {};
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) multiply(sums, gate_weights, x, quarter / 2, quarter % 2);
    if (has_sum()) b.s.part[b.turn][kTileRows * tile + tile_row()][unit] = row_sum(sums);
  }
  if (has_v) {
    const int v_at = layout_of(n).v() + column + min(lane, kColumns - 1);
    uint64_t words[1];
    const uint64_t* const at[1] = {word_of_y(b, v_at)};
    b.receive(words, at, kProjections);
    v_now = column_of(words[0], v_at);
    if (lane < kColumns) b.s.v[parity][lane] = inputs.conv[0].of(v_now);
  }
  b.all_but_feeder_meet();
  b.mark(6);

  const float alpha = b.s.alpha[parity];
  const float4 v = reinterpret_cast<const float4*>(b.s.v[parity])[four];
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    if (!place.has(i)) continue;
    const float2 write = b.s.write[parity][pair + i * kPairsAtOnce];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      float4& of = state[2 * i + odd];
      of = fma4(odd == 0 ? write.x : write.y, v, scaled(alpha, of));
      *place.home(i, odd) = of;
    }
  }
  float gate = inputs.weight[1];  // of one of the first warp's lanes
  if (warp == 0) {
#pragma unroll
    for (int u = 0; u < kGateUnits; ++u) {
      if (u * kUnitColumns < n.rank()) gate += b.s.part[b.turn][min(lane, kColumns - 1)][u];
    }
    gate = rowwise::sigmoid(gate) * inputs.weight[0];
  }
  b.turn ^= 1;
  // No other block reads past inputs of these columns.
  if (has_v && lane < kColumns) Convolution::move_on(p, layer, 2, column + lane, n.H * n.V, v_now);
  b.mark(7);

  const float4 trig = reinterpret_cast<const float4*>(b.s.trig[parity])[lane];
  ulonglong2 words[2];
  const uint64_t* const scores_at = b.from(b.words.scores + role.head * n.M + min(4 * lane, n.M - 4));
  const uint64_t* const at[2] = {scores_at, scores_at + 2};
  b.receive(words, at, kScores);
  b.mark(8);
  float4 scores = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (4 * lane < n.M) {
    const float2 first = rotated(make_float2(low_float(words[0].x), low_float(words[0].y)), make_float2(trig.x, trig.y));
    const float2 second = rotated(make_float2(low_float(words[1].x), low_float(words[1].y)), make_float2(trig.z, trig.w));
    scores = make_float4(first.x, first.y, second.x, second.y);
  }
  const float logit = logit_of(table, scores, n.M), top = greatest(logit), power = expf(logit - top);
  if (lane % 2 == 0) reinterpret_cast<float*>(b.s.powers[warp])[lane / 2] = power;
  __syncwarp();
  float4 mixed = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  float total = 0.0F;
#pragma unroll
  for (int i = 0; i < kTableRows / 4; ++i) {
    const float4 of_rows = b.s.powers[warp][i];
    mixed = fma4(of_rows.w, table[4 * i + 3], fma4(of_rows.z, table[4 * i + 2], mixed));
    mixed = fma4(of_rows.y, table[4 * i + 1], fma4(of_rows.x, table[4 * i], mixed));
    total += (of_rows.x + of_rows.y) + (of_rows.z + of_rows.w);
  }
  reinterpret_cast<float4*>(b.s.mixed[warp])[lane] = mixed;
  if (lane == 0) reinterpret_cast<float2*>(b.s.scales)[warp] = make_float2(top, total);
  b.consumers_meet();

  float4 scales[kWarps / 2];  // of two warps each
  float highest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kWarps / 2; ++i) {
    scales[i] = b.s.scales[i];
    highest = fmaxf(highest, fmaxf(scales[i].x, scales[i].z));
  }
  float factors[kWarps], whole = 0.0F;
#pragma unroll
  for (int i = 0; i < kWarps / 2; ++i) {
    factors[2 * i] = __expf(scales[i].x - highest);
    factors[2 * i + 1] = __expf(scales[i].z - highest);
    whole = fmaf(factors[2 * i + 1], scales[i].w, fmaf(factors[2 * i], scales[i].y, whole));
  }
  const float inverse = __fdividef(1.0F, whole);
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    if (!place.has(i)) continue;
    const int j = pair + i * kPairsAtOnce;
    float2 read = make_float2(0.0F, 0.0F);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 part = reinterpret_cast<const float2*>(b.s.mixed[w])[j];
      read = make_float2(fmaf(factors[w], part.x, read.x), fmaf(factors[w], part.y, read.y));
    }
    const float2 unit = b.s.trig[parity][j];
    read = rotated(make_float2(read.x * inverse, read.y * inverse), make_float2(unit.x, -unit.y));
    sum = fma4(read.x, state[2 * i], fma4(read.y, state[2 * i + 1], sum));
  }
  float sums[4] = {sum.x, sum.y, sum.z, sum.w};
  const float folded = fold<4, kFours>(sums);
  if (lane % 8 < kFours) b.s.out[warp][4 * (lane % kFours) + lane / 8] = folded;
  b.consumers_meet();

  if (warp == 0) {
    float o = 0.0F;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) o += b.s.out[w][lane];
    o = lane < kColumns ? o : 0.0F;
    const float gated = o * gate, next = __shfl_down_sync(0xFFFFFFFFU, gated, 1);
    if (lane < kColumns && lane % 2 == 0) send(b.to(b.words.o + (column + lane) / 2), b.epoch(), pack(gated, next));
    float squares = o * o;
#pragma unroll
    for (int distance = kColumns / 2; distance > 0; distance /= 2) squares += __shfl_xor_sync(0xFFFFFFFFU, squares, distance);
    if (lane == 0) send(b.to(b.words.squares + column / kColumns), b.epoch(), __float_as_uint(squares));
  }
  b.mark(9);
}

__device__ __forceinline__ void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Prefetches into the L2 cache what a block reads of a layer besides its weights. All lanes of one warp.
__device__ __forceinline__ void prefetch_layer(const Params& p, const Layer& layer, const Role& role) {
  const Sizes& n = p.n;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kLine = 32;  // floats
  const auto all = [&](const float* from, int count) {
#pragma unroll 1
    for (int i = kLine * lane; from != nullptr && i < count; i += 32 * kLine) prefetch(from + i);
  };
  if (blockIdx.x + 1 == gridDim.x) {
    all(layer.mixer_norm, n.D);
    all(layer.mlp_norm, n.D);
    all(layer.o_norm, n.V);
    all(layer.q_norm, n.K);
    all(layer.k_norm, n.K);
    all(layer.dt_bias, n.H);
    all(layer.A_log, n.H);
    all(layer.b_bias, n.H);
    all(layer.d_bias, n.H);
  }
  const auto of_convolution = [&](int which, int first, int count, int width) {
    all(layer.conv[which] + first * n.taps, count * n.taps);
    if (layer.conv_bias[which] != nullptr) all(layer.conv_bias[which] + first, count);
#pragma unroll 1
    for (int w = 0; w + 1 < n.taps; ++w) all(layer.past[which] + w * width + first, count);
  };
  if (role.kind == RoleKind::kKeys) {
#pragma unroll 1
    for (int row = lane; row < n.K; row += 32) {
      prefetch(layer.state_k + (static_cast<int64_t>(role.head) * n.K + row) * n.M + role.part * n.key_slots());
    }
    if (role.part < 2) of_convolution(role.part, role.head * n.K, n.K, n.H * n.K);
  } else if (role.kind == RoleKind::kValues) {
#pragma unroll 1
    for (int slot = lane; slot < n.M; slot += 32) {
      prefetch(layer.state_v + (static_cast<int64_t>(role.head) * n.M + slot) * n.V + role.part * n.value_columns());
    }
    of_convolution(2, role.head * n.V + role.part * n.value_columns(), n.value_columns(), n.H * n.V);
    if (lane == 0) prefetch(static_cast<const __nv_bfloat16*>(layer.gate_bias) + role.head * n.V + role.part * n.value_columns());
  }
}

// The helper's part of a layer: gates, clock and write vector before the others need them; when all blocks have read clock and past inputs
// of q and k, their update.
__device__ __forceinline__ void help(Block& b, const Role& role) {
  const Params& p = b.p;
  const Sizes& n = p.n;
  const Layer& layer = p.layer[b.layer];
  const int lane = static_cast<int>(threadIdx.x) % 32, parity = b.layer & 1;
  const ProjectionLayout layout = layout_of(n);
  double clock = 0.0;
  if (role.kind != RoleKind::kNone) {
    const double before = __ldcg(layer.clock + role.head);
    const float dt_bias = __ldg(layer.dt_bias + role.head), A_log = __ldg(layer.A_log + role.head);
    const float b_bias = __ldg(layer.b_bias + role.head), d_bias = __ldg(layer.d_bias + role.head);
    const float rate = expf(A_log);
    const double m = n.M - 1, of_one = 1.0 / m;
    const int columns[3] = {layout.a() + role.head, layout.b() + role.head, layout.d() + role.head};
    uint64_t words[3];
    const uint64_t* const at[3] = {word_of_y(b, columns[0]), word_of_y(b, columns[1]), word_of_y(b, columns[2])};
    b.receive(words, at, kClock);
    const auto sigmoid = [](float x) { return __fdividef(1.0F, 1.0F + expf(-x)); };
    const float delta = sigmoid(column_of(words[2], columns[2]) + d_bias);
    const float beta = sigmoid(column_of(words[1], columns[1]) + b_bias);
    const float alpha = expf(-rate * rowwise::softplus(column_of(words[0], columns[0]) + dt_bias));
    clock = before + static_cast<double>(delta);
    // In double, the clock is reduced modulo m and j clock / m to at most half a turn, so that a large clock loses no accuracy.
    const double phase = (clock - m * floor(clock * of_one)) * of_one;
    const float even = beta * rsqrtf(static_cast<float>(n.M - 1));
#pragma unroll
    for (int i = 0; i < kMaxSlots / 2 / 32; ++i) {
      const int j = lane + 32 * i;
      const double turns = j * phase;
      float2 unit;
      sincospif(2.0F * static_cast<float>(turns - rint(turns)), &unit.y, &unit.x);
      const float amplitude = j == 0 ? even : even * 1.41421356F;
      b.s.trig[parity][j] = unit;
      b.s.write[parity][j] = make_float2(amplitude * unit.x, j == 0 ? 0.0F : -amplitude * unit.y);
    }
    if (lane == 0) b.s.alpha[parity] = alpha;
    b.all_but_feeder_meet();
  }
  if (b.layer + 1 < n.layers) prefetch_layer(p, p.layer[b.layer + 1], role);
  if (role.kind != RoleKind::kKeys) return;

  // A word of the SwiGLU's input exists when some block has all outputs, that is, when all blocks of keys and values are done.
  uint64_t done[1];
  const uint64_t* const end[1] = {b.from(b.words.between)};
  b.receive(done, end, kNothing);
  const int begin = n.K * role.part / n.key_parts(), count = n.K * (role.part + 1) / n.key_parts() - begin;
#pragma unroll 1
  for (int i = lane; i < 2 * count; i += 32) {
    const int which = i / count, column = role.head * n.K + begin + i % count, place = (which == 0 ? layout.q() : layout.k()) + column;
    Convolution::move_on(p, layer, which, column, n.H * n.K, column_of(load_word(word_of_y(b, place)), place));
  }
  if (role.part == 0 && lane == 0) layer.clock[role.head] = clock;
}

}  // namespace cyfa::whole_step
