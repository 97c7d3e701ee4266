// The readout of the Hopper backward for two sections of slots (docs/operator.md, "Chunks"), as a series of launches. The scan and the
// passes then process one section at a time.
//   readout   recomputes p and U from the scores (sm90_readout.cu)
//   weights   dU = D * (dO V^T) W + a (dO S_V^T) of one section, dX = rot(dU)
//   scores    dL = p * (dX A^T - rowsum(p * dX A^T)), dY = unrot(dL A), over both sections
//   table     dA = dL^T Z + p^T dX, one quarter per thread block
//   join      after the passes: adds the sections' gradients of q, k and v
// Called by sm90_backward.cu. Overwrites weights (U), d_scores, d_tables, d_units, row_units, read[kValues], along and turned[2] of both
// workspaces. Until the scan writes dS', its memory holds intermediates in half precision: dX of both sections in d_v, p in d_q, dL in d_q
// of the second section.
//
// Products are in half precision as in sm90_backward_readout.cu, with a power-of-two scale per row of pairs, per row of dX in memory, and
// per half tile of dX and dL, so that the warpgroups need not synchronise.
#include <cstddef>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_sections.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

using two_sections::kP;
using two_sections::kRowsThreads;
using two_sections::kTableBytes;

constexpr int kConsumerWarps = 8;
constexpr int kPanels = kD / kPanelColumns;

// ---- weights

constexpr int kWeightsThreads = 384;
constexpr int kItems = 3 * kPanels;  // dO, v, value state for each 64 columns, each with its own buffer

struct WeightsParams {
  Sm90BackwardParams p;
  Workspace w;
  cyclic_flow::Workspace forward;
  CUtensorMap grad_o, v, states;
  __half* d_mixed;  // [T, H, P] dX
};

struct WeightsShared {
  char ring[kItems * kPanelBytes];
  char writes[2 * kPanelBytes];
  Tokens tokens;
  float query_rate[2][kC];
  uint64_t full[kItems], empty[kItems];
  uint64_t tokens_full, tokens_empty;
};
static_assert(sizeof(WeightsShared) <= 227 * 1024);
constexpr int kWrites = offsetof(WeightsShared, writes);

__device__ __forceinline__ void feed_copies(const WeightsParams& params, WeightsShared& s, const Share& share) {
  const Sm90ForwardParams& p = params.p.in;
  int parity = 0;
  for (int t = share.last; t >= 0; t -= share.step, parity ^= 1) {
    const int token = static_cast<int>(p.tile[t].token);
    const int state = state_row(p, t, share.h, kValues);
    for (int item = 0; item < kItems; ++item) {
      const int kind = item % 3;
      const int column = item / 3 * kPanelColumns;
      barrier_wait(&s.empty[item], 1 - parity);
      barrier_expect(&s.full[item], kPanelBytes);
      copy_box(shared_address(s.ring + item * kPanelBytes),
               kind == 0   ? &params.grad_o
               : kind == 1 ? &params.v
                           : &params.states,
               (kind == 2 ? 0 : share.h * kD) + column, kind == 2 ? state : token, &s.full[item]);
    }
  }
}

// One half tile: the warpgroup's 64 tokens, of which this warp owns strip .. strip + 15.
__device__ __forceinline__ void weights_of_half(const Sm90BackwardParams& p, const Workspace& w, __half* d_mixed, WeightsShared& s,
                                                int strip, int h, int parity) {
  const int lane = threadIdx.x % 32;
  const int group = strip / 64;
  const int row = strip + lane / 4;  // and row + 8
  const uint32_t base = anew(shared_address(&s)) >> 4;
  float pairs[64] = {};
  float d_weights[64] = {};
#pragma unroll 1
  for (int panel = 0; panel < kPanels; ++panel) {
    const uint32_t at = base + 3 * panel * (kPanelBytes >> 4);
    const uint32_t at_o = at + group * (64 * kRowBytes >> 4);
#pragma unroll
    for (int i = 0; i < 3; ++i) barrier_wait(&s.full[3 * panel + i], parity);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) wgmma<0>(pairs, along_columns_128(at_o, 0, 16 * kk), along_columns_128(at, kPanelBytes, 16 * kk), 1);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      wgmma<0>(d_weights, along_columns_128(at_o, 0, 16 * kk), along_columns_128(at, 2 * kPanelBytes, 16 * kk), 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if (lane == 0) barrier_arrive(&s.empty[3 * panel + i]);
    }
  }
  barrier_wait(&s.tokens_full, parity);
  const int token = s.tokens.token;
  const int tokens = s.tokens.tokens;
  const bool valid0 = row < tokens;
  const bool valid8 = row + 8 < tokens;
  const uint32_t turn0 = s.tokens.turn(row);
  const uint32_t turn8 = s.tokens.turn(row + 8);
  uint32_t weights[8][4];  // U
  {
    const bf16* from = w.weights + (static_cast<int64_t>(token + row) * p.in.H + h) * kD;
    two_sections::load_rows(weights, from, from + int64_t{8} * p.in.H * kD, valid0, valid8);
  }
  const int64_t scalars = h * p.in.T + token + row;
  scale_rows(d_weights, power_of_2(s.tokens.gate(row).x), power_of_2(s.tokens.gate(row + 8).x));
  {
    float read0, read8;
    dot_of_rows(
        weights, d_weights, [](uint32_t x) { return unpack_apart(x); }, read0, read8);
    if (lane % 4 == 0 && valid0) w.read[kValues][scalars] = read0;
    if (lane % 4 == 0 && valid8) w.read[kValues][scalars + 8] = read8;
  }
  settle(weights);  // otherwise they are kept as fp32
  decay(pairs, strip, s.tokens);
  float top0, top8;
  top_of_rows(pairs, top0, top8);
  const float unit0 = unit_of(top0);
  const float unit8 = unit_of(top8);
  uint32_t a[8][4];
  pack_halves(pairs, unit0, unit8, a);
  scale_rows(d_weights, unit0, unit8);
  settle(d_weights);
  settle(a);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kC / 16; ++kk) wgmma_half<1>(d_weights, a[kk], along_rows_128(base, kWrites, 16 * kk), 1);
  wgmma_commit();
  wgmma_wait<0>();
  if (lane == 0) barrier_arrive(&s.tokens_empty);
  scale_rows(d_weights, inverse_of_unit(unit0), inverse_of_unit(unit8));
  Products products;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    products.add(i, unpack(weights[i / 2][i % 2 * 2]), unpack(weights[i / 2][i % 2 * 2 + 1]), d_weights, w.slots.first + pair_of(i));
  }
  const float clock0 = -w.slots.turn * quad_sum(products.slope0);
  const float clock8 = -w.slots.turn * quad_sum(products.slope8);
  if (lane % 4 == 0 && valid0) w.turned[2][scalars] = clock0;
  if (lane % 4 == 0 && valid8) w.turned[2][scalars + 8] = clock8;
  rotate<1>(d_weights, turn0, turn8, w.slots.first_pair);
  top_of_rows(d_weights, top0, top8);
  const float factor0 = 128.0F * unit_of(top0);
  const float factor8 = 128.0F * unit_of(top8);
  pack_halves(d_weights, factor0, factor8, a);
  if (lane % 4 == 0 && valid0) w.row_units[scalars] = inverse_of_unit(factor0);
  if (lane % 4 == 0 && valid8) w.row_units[scalars + 8] = inverse_of_unit(factor8);
  __half* to = d_mixed + (static_cast<int64_t>(token + row) * p.in.H + h) * kP + p.in.section * kM;
  two_sections::store_rows(a, to, to + int64_t{8} * p.in.H * kP, valid0, valid8);
}

__global__ void __launch_bounds__(kWeightsThreads, 1) cyclic_flow_backward_weights_sm90(const __grid_constant__ WeightsParams params) {
  extern __shared__ __align__(1024) char raw[];
  WeightsShared& s = *reinterpret_cast<WeightsShared*>(raw);
  const Sm90BackwardParams& p = params.p;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kItems; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kConsumerWarps);
    }
    barrier_init(&s.tokens_full, kFeeders);
    barrier_init(&s.tokens_empty, kConsumerWarps);
    fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const Share share(p.in);
    if (threadIdx.x == 0) {
      feed_copies(params, s, share);
    } else if (threadIdx.x >= 32) {
      feed_tokens<false>(p.in, params.forward, s, share);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const Share share(p.in);
    const int strip = static_cast<int>(__shfl_sync(0xFFFFFFFF, 16 * (threadIdx.x / 32 - 4), 0));
    int parity = 0;
    for (int t = share.last; t >= 0; t -= share.step, parity ^= 1) weights_of_half(p, params.w, params.d_mixed, s, strip, share.h, parity);
  }
}

cudaError_t backward_weights(const Sm90BackwardParams& p, __half* d_mixed, cudaStream_t stream) {
  WeightsParams params = {p, workspace_of(p), cyclic_flow::workspace_of(p.in), {}, {}, {}, d_mixed};
  const int64_t width = static_cast<int64_t>(p.in.H) * kD;
  cudaError_t status = make_tensor_map(params.grad_o, p.grad_o, p.in.T, width, width, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.v, p.in.v, p.in.T, width, p.in.v_stride, kC);
  if (status == cudaSuccess) {
    status = make_tensor_map(params.states, params.w.states, (static_cast<int64_t>(p.in.tiles) * p.in.H * 2 + 1) * kM, kD, kD, kM);
  }
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(cyclic_flow_backward_weights_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(WeightsShared)));
  }
  if (status != cudaSuccess) return status;
  cyclic_flow_backward_weights_sm90<<<readout_blocks_of_head(p) * p.in.H, kWeightsThreads, sizeof(WeightsShared), stream>>>(params);
  return cudaGetLastError();
}

// ---- scores

struct ScoresParams {
  Sm90ForwardParams p;
  Workspace w[2];  // of each section
  CUtensorMap table;
  __half* d_mixed;  // [T, H, P] dX
  const __half* probs;
  __half* d_logits;
};

__device__ __forceinline__ uint32_t times_half(uint32_t x, __half2 factor) {
  const __half2 y = __hmul2(reinterpret_cast<const __half2&>(x), factor);
  return reinterpret_cast<const uint32_t&>(y);
}

struct ScoresShared {
  char table[kTableBytes];
  float top[2][kConsumerWarps];  // largest row_units of each warp's rows
  uint64_t full;
};

__global__ void __launch_bounds__(kRowsThreads, 1) cyclic_flow_backward_scores_sm90(const __grid_constant__ ScoresParams params) {
  extern __shared__ __align__(1024) char raw[];
  ScoresShared& s = *reinterpret_cast<ScoresShared*>(raw);
  const Sm90ForwardParams& p = params.p;
  const Workspace& w = params.w[0];
  const Share share(p);
  const int h = share.h;
  if (threadIdx.x == 0) {
    barrier_init(&s.full, 1);
    fence_barrier_init();
    two_sections::copy_table(s.table, &params.table, h, &s.full);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t pitch = static_cast<int64_t>(p.H) * kP;
  // Recomputed in every part: register pressure.
  struct Rows {
    int64_t token;  // token of `row`
    bool valid0, valid8;
  };
  const auto rows_of = [&](int t) {
    const int row = static_cast<int>(anew(threadIdx.x) / 32 * 16 + anew(threadIdx.x) % 32 / 4);  // and row + 8
    const Tile& tile = p.tile[anew(t)];
    return Rows{tile.token + row, row < tile.tokens, row + 8 < tile.tokens};
  };
  const int group = static_cast<int>(threadIdx.x) / 128;
  barrier_wait(&s.full, 0);
  int parity = 0;
  for (int t = share.last; t >= 0; t -= share.step, parity ^= 1) {
    const uint32_t table = anew(shared_address(s.table)) >> 4;
    uint32_t a[16][4];  // dX
    float inverse;      // inverse of the scale of dX
    {
      const auto [token, valid0, valid8] = rows_of(t);
      __half* rows = params.d_mixed + token * pitch + h * kP;
      two_sections::load_rows(a, rows, rows + 8 * pitch, valid0, valid8);
      float units[2][2];  // divisors of both sections' rows, replaced by their maximum
#pragma unroll
      for (int section = 0; section < 2; ++section) {
        const float* from = params.w[section].row_units + h * p.T + token;
        units[section][0] = valid0 ? from[0] : 0.0F;
        units[section][1] = valid8 ? from[8] : 0.0F;
      }
      inverse = fmaxf(fmaxf(units[0][0], units[0][1]), fmaxf(units[1][0], units[1][1]));
      inverse = __uint_as_float(__reduce_max_sync(0xFFFFFFFF, __float_as_uint(inverse)));
      if (lane == 0) s.top[parity][threadIdx.x / 32] = inverse;
      named_barrier(1 + group, 128);
      inverse = 1e-30F;  // there may be no valid rows
#pragma unroll
      for (int i = 0; i < kConsumerWarps / 2; ++i) inverse = fmaxf(inverse, s.top[parity][4 * group + i]);
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const __half2 factor = __float2half2_rn(units[i / 32][i % 2] / inverse);
        a[i / 4][i % 4] = times_half(a[i / 4][i % 4], factor);
      }
      settle(a);
      two_sections::store_rows(a, rows, rows + 8 * pitch, valid0, valid8);
    }
    if (t >= share.step) {
      const Tile& next = p.tile[t - share.step];
      const int strip = 16 * static_cast<int>(threadIdx.x / 32);
      const int64_t first = ((next.token + strip) * pitch + h * kP) * 2;  // byte offset in all three arrays
      const void* const arrays[3] = {params.d_mixed, params.probs, w.scores};
#pragma unroll
      for (const void* array : arrays) two_sections::ask_for_rows(static_cast<const char*>(array) + first, 2 * pitch, next.tokens - strip);
    }
    if (threadIdx.x % 128 == 0) w.d_units[2 * (static_cast<int64_t>(t) * p.H + h) + group] = inverse;
    uint32_t dl[16][4];
    {
      float d_logits[2][64];
      settle(a);
      two_sections::times_transposed(d_logits, a, table);
      wgmma_wait<0>();
      // p is loaded 64 slots at a time, twice.
      const auto [token, valid0, valid8] = rows_of(t);
      const __half* probs = params.probs + token * pitch + h * kP;
      const auto load_probs = [&](uint32_t(&x)[4][4], int part) {
        two_sections::load_rows(x, probs + 64 * part, probs + 64 * part + 8 * pitch, valid0, valid8);
      };
      float mean0 = 0.0F;
      float mean8 = 0.0F;
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        asm volatile("" ::: "memory");  // otherwise all loads are hoisted
        uint32_t x[4][4];
        load_probs(x, part);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float* d = &d_logits[part / 2][part % 2 * 32 + 4 * i];
          const float2 x0 = unpack_half(x[i / 2][i % 2 * 2]);
          const float2 x8 = unpack_half(x[i / 2][i % 2 * 2 + 1]);
          mean0 = fmaf(x0.x, d[0], fmaf(x0.y, d[1], mean0));
          mean8 = fmaf(x8.x, d[2], fmaf(x8.y, d[3], mean8));
        }
      }
      mean0 = quad_sum(mean0);
      mean8 = quad_sum(mean8);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        asm volatile("" ::: "memory");
        uint32_t x[4][4];
        load_probs(x, part);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float* d = &d_logits[part / 2][part % 2 * 32 + 4 * i];
          const float2 x0 = unpack_half(x[i / 2][i % 2 * 2]);
          const float2 x8 = unpack_half(x[i / 2][i % 2 * 2 + 1]);
          x[i / 2][i % 2 * 2] = pack_half(x0.x * (d[0] - mean0), x0.y * (d[1] - mean0));
          x[i / 2][i % 2 * 2 + 1] = pack_half(x8.x * (d[2] - mean8), x8.y * (d[3] - mean8));
        }
        settle(x);  // convert here, not at the use
#pragma unroll
        for (int i = 0; i < 16; ++i) dl[4 * part + i / 4][i % 4] = x[i / 4][i % 4];
      }
    }
    settle(dl);
    {
      const auto [token, valid0, valid8] = rows_of(t);
      __half* to = params.d_logits + token * pitch + h * kP;
      two_sections::store_rows(dl, to, to + 8 * pitch, valid0, valid8);
    }
    float d_scores[2][64];
    settle(dl);
    two_sections::times(d_scores[0], dl, table, 0);
    two_sections::times(d_scores[1], dl, table, 1);
    wgmma_wait<0>();
    const float unit = w.table_unit[h];
    const float factor = unit * unit * inverse;
#pragma unroll
    for (int section = 0; section < 2; ++section) {
      const Workspace& ws = params.w[section];
      const auto [token, valid0, valid8] = rows_of(t);
      const int64_t scalars = h * p.T + token;
      float(&d)[64] = d_scores[section];
      scale_rows(d, factor, factor);
      Products products;
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        asm volatile("" ::: "memory");
        uint32_t z[2][4];
        const __half* from = w.scores + token * pitch + h * kP + section * kM + 32 * part;
        two_sections::load_rows(z, from, from + 8 * pitch, valid0, valid8);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          products.add(4 * part + i, unpack_half(z[i / 2][i % 2 * 2]), unpack_half(z[i / 2][i % 2 * 2 + 1]), d,
                       ws.slots.first + pair_of(4 * part + i));
        }
      }
      const float clock0 = kScoreUnit * ws.slots.turn * quad_sum(products.slope0);
      const float clock8 = kScoreUnit * ws.slots.turn * quad_sum(products.slope8);
      const float along0 = kScoreUnit * quad_sum(products.dot0);
      const float along8 = kScoreUnit * quad_sum(products.dot8);
      if (lane % 4 == 0 && valid0) {
        ws.turned[2][scalars] += clock0;
        ws.along[scalars] = along0;
      }
      if (lane % 4 == 0 && valid8) {
        ws.turned[2][scalars + 8] += clock8;
        ws.along[scalars + 8] = along8;
      }
      scale_rows(d, valid0 ? p.scale * w.rate[1][scalars] : 0.0F, valid8 ? p.scale * w.rate[1][scalars + 8] : 0.0F);
      rotate<-1>(d, valid0 ? w.turn[scalars] : 0, valid8 ? w.turn[scalars + 8] : 0, ws.slots.first_pair);
      uint32_t packed[8][4];
      pack_rows(d, packed);
      bf16* to = ws.d_scores + (token * p.H + h) * kD;
      two_sections::store_rows(packed, to, to + int64_t{8} * p.H * kD, valid0, valid8);
    }
  }
}

// ---- table

constexpr int kTableThreads = 288;  // two warpgroups and a producer warp
constexpr int kTableStages = 3;
constexpr int kStageBytes = 4 * kPanelBytes;  // [128 tokens, 128 slots] of two arrays

struct TableParams {
  Sm90ForwardParams p;
  Workspace w;
  CUtensorMap left[2], right[2];  // dL and p; Z and dX
};

struct TableShared {
  char stages[kTableStages][kStageBytes];
  uint64_t full[kTableStages], empty[kTableStages];
};

// Alternates dL^T Z and p^T dX over tiles; a block computes 128 rows and 128 columns of the table.
__global__ void __launch_bounds__(kTableThreads, 1) cyclic_flow_backward_table_sm90(const __grid_constant__ TableParams params) {
  extern __shared__ __align__(1024) char raw[];
  TableShared& s = *reinterpret_cast<TableShared*>(raw);
  const Sm90ForwardParams& p = params.p;
  const int quarter = static_cast<int>(blockIdx.x) % 4;
  const int h = static_cast<int>(blockIdx.x) / 4 % p.H;
  const int first = static_cast<int>(blockIdx.x) / 4 / p.H;
  const int step = static_cast<int>(gridDim.x) / 4 / p.H;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kTableStages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kConsumerWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x >= 256) {
    if (threadIdx.x > 256) return;
    int n = 0;
    for (int t = first; t < p.tiles; t += step) {
      const int token = static_cast<int>(p.tile[t].token);
      for (int part = 0; part < 2; ++part, ++n) {
        const int stage = n % kTableStages;
        barrier_wait(&s.empty[stage], 1 - n / kTableStages % 2);
        barrier_expect(&s.full[stage], kStageBytes);
        for (int i = 0; i < 4; ++i) {
          const int slots = i < 2 ? quarter / 2 : quarter % 2;
          copy_box(shared_address(s.stages[stage] + i * kPanelBytes), i < 2 ? &params.left[part] : &params.right[part],
                   h * kP + slots * kM + i % 2 * kPanelColumns, token, &s.full[stage]);
        }
      }
    }
    return;
  }
  const int group = static_cast<int>(threadIdx.x) / 128;
  const float unit = params.w.table_unit[h];
  float sum[64] = {};
  int n = 0;
  for (int t = first; t < p.tiles; t += step) {
    const int tokens = p.tile[t].tokens;
    float2 inverse = *reinterpret_cast<const float2*>(params.w.d_units + 2 * (static_cast<int64_t>(t) * p.H + h));
    inverse.y = fmaxf(inverse.y, inverse.x * 9e-13F);  // a smaller value would be negligible, but the ratio could overflow
#pragma unroll 1
    for (int part = 0; part < 2; ++part, ++n) {
      const int stage = n % kTableStages;
      barrier_wait(&s.full[stage], n / kTableStages % 2);
      char* left = s.stages[stage] + group * kPanelBytes;  // this warpgroup's 64 rows of the table
      if (tokens < kC) {                                   // rows past the tile's end belong to another sequence
        for (int i = tokens * 8 + static_cast<int>(threadIdx.x) % 128; i < kC * 8; i += 128) {
          *reinterpret_cast<uint4*>(left + 16 * i) = make_uint4(0, 0, 0, 0);
        }
        fence_async_proxy();
        named_barrier(1 + group, 128);
      }
      const uint32_t at_left = shared_address(left) >> 4;
      const uint32_t at_right = shared_address(s.stages[stage]) >> 4;
      float product[64];
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // half tiles of tokens: each has its own divisor
        wgmma_fence();
#pragma unroll
        for (int kk = 4 * half; kk < 4 * half + 4; ++kk) {
          wgmma_half<1, 1>(product, along_rows_128(at_left, 0, 16 * kk), along_rows_128(at_right, 2 * kPanelBytes, 16 * kk), kk > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        if (half == 0) scale_rows(product, inverse.x / inverse.y, inverse.x / inverse.y);
      }
      if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[stage]);
      const float factor = part == 0 ? inverse.y * unit * kScoreUnit : inverse.y;
#pragma unroll
      for (int i = 0; i < 64; ++i) sum[i] = fmaf(factor, product[i], sum[i]);
    }
  }
  float4* to = params.w.d_tables + static_cast<int64_t>(blockIdx.x) * (kM * kM / 4) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < 16; ++i) to[i * 256] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
}

// ---- join

struct JoinParams {
  uint4* to[3];
  const uint4* from[3];
  int64_t count;
};

__global__ void __launch_bounds__(kThreads) cyclic_flow_backward_join_sm90(const __grid_constant__ JoinParams params) {
  uint4* to = params.to[blockIdx.y];
  const uint4* from = params.from[blockIdx.y];
  const auto add = [](uint32_t x, uint32_t y) {
    const float2 a = unpack(x);
    const float2 b = unpack(y);
    return pack(a.x + b.x, a.y + b.y);
  };
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < params.count;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const uint4 x = to[i];
    const uint4 y = from[i];
    to[i] = make_uint4(add(x.x, y.x), add(x.y, y.y), add(x.z, y.z), add(x.w, y.w));
  }
}

}  // namespace

cudaError_t backward_readout_of_sections(const Sm90BackwardParams (&sections)[2], cudaStream_t stream) {
  const Sm90ForwardParams& p = sections[0].in;
  const Workspace w[2] = {workspace_of(sections[0]), workspace_of(sections[1])};
  __half* probs = static_cast<__half*>(sections[0].d_q);
  __half* d_logits = static_cast<__half*>(sections[1].d_q);
  __half* d_mixed = static_cast<__half*>(sections[0].d_v);
  cudaError_t status = sm90_readout_again(p, probs, w[0].weights, w[1].weights, stream);
  for (const Sm90BackwardParams& section : sections) {
    if (status == cudaSuccess) status = backward_weights(section, d_mixed, stream);
  }

  ScoresParams scores = {p, {w[0], w[1]}, {}, d_mixed, probs, d_logits};
  if (status == cudaSuccess) status = two_sections::make_table_map(scores.table, w[0].table, p.H);
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(cyclic_flow_backward_scores_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(ScoresShared)));
  }
  if (status != cudaSuccess) return status;
  cyclic_flow_backward_scores_sm90<<<readout_blocks_of_head(sections[0]) * p.H, kRowsThreads, sizeof(ScoresShared), stream>>>(scores);
  status = cudaGetLastError();

  TableParams table = {p, w[0], {}, {}};
  const int64_t width = static_cast<int64_t>(p.H) * kP;
  const __half* arrays[4] = {d_logits, probs, w[0].scores, d_mixed};
  for (int i = 0; i < 4; ++i) {
    if (status == cudaSuccess) status = make_tensor_map((i < 2 ? table.left : table.right)[i % 2], arrays[i], p.T, width, width, kC);
  }
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(cyclic_flow_backward_table_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(TableShared)));
  }
  if (status != cudaSuccess) return status;
  cyclic_flow_backward_table_sm90<<<table_blocks(sections[0]) * p.H * 4, kTableThreads, sizeof(TableShared), stream>>>(table);
  return cudaGetLastError();
}

cudaError_t backward_join(const Sm90BackwardParams (&sections)[2], cudaStream_t stream) {
  JoinParams params = {};
  void* const to[3] = {sections[0].d_q, sections[0].d_k, sections[0].d_v};
  const void* const from[3] = {sections[1].d_q, sections[1].d_k, sections[1].d_v};
  for (int i = 0; i < 3; ++i) {
    params.to[i] = static_cast<uint4*>(to[i]);
    params.from[i] = static_cast<const uint4*>(from[i]);
  }
  params.count = sections[0].in.T * sections[0].in.H * kD / 8;
  const int64_t blocks = std::min<int64_t>((params.count + kThreads - 1) / kThreads, 8 * kReadoutBlocks);
  cyclic_flow_backward_join_sm90<<<dim3(static_cast<unsigned>(blocks), 3), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
