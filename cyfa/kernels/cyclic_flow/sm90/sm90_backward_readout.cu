// The readout of the Hopper backward (docs/operator.md, "Chunks"): recomputes p and U from the scores, then
//   dU = D * (dO V^T) W + a (dO S_V^T)      dX = rot(dU)      dL = p * (dX A^T - rowsum(p * dX A^T))
//   dY = unrot(dL A)                        dA += dL^T Z + p^T dX
// One tile of one head at a time, with no dependence between tiles. A persistent block stays with one head, takes every (gridDim.x / H)-th
// tile and accumulates its own dA. Warp roles: thread 0 issues TMA copies, warps 1 to 3 compute write vectors (token warps), warpgroups 1
// and 2 own 64 tokens of the tile each, and 64 rows of dA, which stay in registers. Called by sm90_backward.cu. Overwrites weights (U),
// d_scores, d_tables, read[kValues], along and turned[2] of the workspace.
//
// Shared memory, 227 KB, in pairs of panels of [128 rows, 64 columns]. Each pair holds several things in turn:
//   dX         first half of the columns of dO; dX
//   pairs 0-3  one of the following uses each. In the next tile a pair has the use listed below its current one, cyclically:
//                 Z, then the first half of S_V, then Z again
//                 p
//                 v, first then second half, then the second half of S_V; dL; dY until it is stored
//                 second half of dO; Z of the next tile
//   table      the table; U until it is stored; the table again
//   writes, tokens   as in sm90_forward_outputs.cu
// Values of 128 or 64 columns have no second half.
//
// All products of the readout are in half precision: p, the table and Z as in forward. Gradients are divided by a power of two, chosen per
// row for pairs and per tile for dX and dL, so that gradients of any magnitude keep their precision. The operands of dA use the power of
// two of the largest dX so far.
#include <cstddef>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_readout.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

constexpr int kReadoutThreads = 384;
constexpr int kConsumerWarps = 8;
constexpr int kPlaces = 4;
constexpr int kPairBytes = 2 * kPanelBytes;

struct ReadoutParams {
  Sm90BackwardParams p;
  Workspace w;
  cyclic_flow::Workspace forward;
  CUtensorMap scores, grad_o, v, states, table, rows;
};

struct Shared {
  char pairs[5][kPairBytes];
  char table[kPairBytes];
  char writes[kPairBytes];
  Tokens tokens;
  float query_rate[2][kC];    // 1 / rms(q), of this tile and the next
  float top[kConsumerWarps];  // largest |dX| in each warp's rows
  uint64_t full[kPlaces], empty[kPlaces];
  int2 tile[2];   // first token and number of tokens, of this tile and the next
  int h, count;   // the block's head and number of tiles
  float most;     // largest |dX| in the block's tiles so far
  float unit;     // table_unit
  uint32_t zero;  // zero, opaque to the compiler
  uint64_t scores_full, again_full, table_full, tokens_full, tokens_empty;
  // All consumer warps are done with: Z for the logits; the table for U; U; p and dX for dA; dL and Z for dA; the store of dY.
  uint64_t scored, mixed, weights_done, probs_done, tile_done, stored;
};
static_assert(sizeof(Shared) <= 227 * 1024);
constexpr int kTable = offsetof(Shared, table);
constexpr int kWrites = offsetof(Shared, writes);
constexpr int kDX = 4 * kPairBytes;

// Uses of pairs 0 to 3 in the block's n-th tile; in the next tile each pair has the next use.
enum Use { kScores, kProbs, kDL, kNextScores };
__device__ __forceinline__ int pair_of_use(int use, int n) { return ((use - n) & 3) * kPairBytes; }

// The pairs that dO, v and S_V are copied into: those of dX, dL, the next scores and the scores. distance_of gives their byte offsets in
// shared memory.
enum Place { kAtDX, kAtDL, kAtNext, kAtScores };
__device__ __forceinline__ int distance_of(int place, int n) {
  return place == kAtDX ? kDX : pair_of_use(place == kAtDL ? kDL : place == kAtNext ? kNextScores : kScores, n);
}
// Barrier parity of such a pair in the block's n-th tile: dL's is filled three times per tile (once for narrow values), the others once.
__device__ __forceinline__ int parity_of(int use, int n) { return (use + n) & 1; }

// Scale of dA's operands besides unit_of the largest dX: keeps dX below 8 and dL times kScoreUnit within half precision.
__device__ __forceinline__ float unit_of_sum(float table_unit) { return 4.0F * fminf(1.0F, inverse_of_unit(table_unit)); }

// Issues all copies of the block's tiles in the order in which buffers become free.
template <int kPanels>
__device__ __forceinline__ void feed_copies(const ReadoutParams& params, Shared& s, const Share& share) {
  const Sm90ForwardParams& p = params.p.in;
  const int h = share.h;
  const uint32_t base = shared_address(&s);
  const auto load_scores = [&](uint64_t* full, int t, int n) {
    barrier_expect(full, kPairBytes);
    for (int panel = 0; panel < 2; ++panel) {
      copy_box(base + pair_of_use(kScores, n) + panel * kPanelBytes, &params.scores, h * kM + panel * kPanelColumns,
               static_cast<int>(p.tile[t].token), full);
    }
  };
  const auto load_next = [&](int t, int n) {
    s.tile[n % 2] = make_int2(static_cast<int>(p.tile[t].token), p.tile[t].tokens);
    load_scores(&s.scores_full, t, n);
  };
  const auto load_table = [&] {
    barrier_expect(&s.table_full, kPairBytes);
    for (int panel = 0; panel < 2; ++panel) {
      copy_box(base + kTable + panel * kPanelBytes, &params.table, panel * kPanelColumns, h * kM, &s.table_full);
    }
  };
  s.h = h;
  s.count = share.last / share.step + 1;
  load_table();
  load_next(share.last, 0);
  int n = 0;
#pragma unroll 1
  for (int t = share.last; t >= 0; t -= share.step, ++n) {
    const int token = static_cast<int>(p.tile[t].token);
    const int state = state_row(p, t, h, kValues);
    const auto load = [&](int place, const CUtensorMap& map, int column, int row) {
      uint64_t* full = &s.full[place];
      constexpr int kCount = kPanels == 1 ? 1 : 2;
      barrier_expect(full, kCount * kPanelBytes);
      const uint32_t to = base + distance_of(place, anew(n));
#pragma unroll
      for (int i = 0; i < kCount; ++i) copy_box(to + i * kPanelBytes, &map, column + i * kPanelColumns, row, full);
    };
    barrier_wait(&s.probs_done, 1 - n % 2);
    constexpr int kWidth = kPanels * kPanelColumns;
    load(kAtDX, params.grad_o, h * kWidth, token);
    load(kAtDL, params.v, h * kWidth, token);
    barrier_wait(&s.stored, 1 - n % 2);
    if (kPanels == 4) load(kAtNext, params.grad_o, h * kD + kD / 2, token);
    barrier_wait(&s.scored, n % 2);
    load(kAtScores, params.states, 0, state);
    if (kPanels == 4) {
      barrier_wait(&s.empty[kAtDL], parity_of(0, n));
      load(kAtDL, params.v, h * kD + kD / 2, token);
      barrier_wait(&s.empty[kAtDL], parity_of(1, n));
      load(kAtDL, params.states, kD / 2, state);
    }
    barrier_wait(&s.empty[kAtScores], n % 2);
    load_scores(&s.again_full, t, n);
    barrier_wait(&s.weights_done, n % 2);
    load_table();
    if (t >= share.step) {
      if (kPanels == 4) barrier_wait(&s.empty[kAtNext], n % 2);
      load_next(t - share.step, n + 1);
    }
  }
}

// One half tile: the warpgroup's 64 tokens, of which this warp owns strip .. strip + 15.
template <int kPanels>
__device__ __forceinline__ void readout_of_half(const Sm90BackwardParams& p, const Workspace& w, const CUtensorMap& rows, Shared& s,
                                                int strip, int n, float (&d_table)[64]) {
  const int lane = threadIdx.x % 32;
  const int group = strip / 64;
  const int parity = n % 2;
  const volatile float& unit = s.unit;     // loaded at each use: register pressure
  const volatile uint32_t& zero = s.zero;  // added to values that ptxas would otherwise keep live between uses
  const volatile int& h = s.h;
  const auto token = [&] { return *const_cast<const volatile int*>(&s.tile[parity].x); };
  const auto tokens = [&] { return *const_cast<const volatile int*>(&s.tile[parity].y); };
  const auto anew_address = [&] { return shared_address(&s) + __shfl_sync(0xFFFFFFFF, zero, 0); };
  const int row = strip + lane / 4;  // and row + 8
  // Recomputed in every part: otherwise operand descriptors stay live and registers spill.
  uint32_t at = anew_address();
  uint32_t base = at >> 4;
  const int stride = p.in.H * 2 * kM;

  // Recompute p from the scores and U = unrot(p A). The tensor cores compute dO V^T meanwhile.
  uint32_t turn0, turn8;
  float pairs[64];
  const auto wait_full = [&](int place, int use) { barrier_wait(&s.full[place], parity_of(use, n)); };
  const auto release = [&](int place) {
    if (lane == 0) barrier_arrive(&s.empty[place]);
  };
  // Product of half of the columns of dO with v or the state.
  const auto multiply = [&](float(&d)[64], int place_o, int place, bool first) {
    const uint32_t at_o = base + group * (64 * kRowBytes >> 4) + (distance_of(place_o, n) >> 4);
    const uint32_t at_b = base + (distance_of(place, n) >> 4);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < (kPanels == 1 ? 4 : 8); ++kk)
      wgmma<0>(d, along_columns_128(at_o, 0, 16 * kk), along_columns_128(at_b, 0, 16 * kk), !first || kk > 0);
    wgmma_commit();
  };
  barrier_wait(&s.scores_full, parity);
  {
    float logits[1][64];
    const uint32_t at_z = base + (pair_of_use(kScores, n) >> 4) + group * (64 * kRowBytes >> 4);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) {
      wgmma_half<0>(logits[0], along_columns_128(at_z, 0, 16 * kk), along_columns_128(base, kTable, 16 * kk), kk > 0);
    }
    wgmma_commit();
    if (n > 0) {  // the previous tile's dY
      copies_read();
      if (lane == 0) barrier_arrive(&s.stored);
    }
    wait_full(kAtDX, 0);
    wait_full(kAtDL, 0);
    multiply(pairs, kAtDX, kAtDL, true);
    wgmma_wait<1>();
    if (lane == 0) barrier_arrive(&s.scored);
    softmax_rows(logits, kScoreUnit * unit, p.in.M - 1, [&] {
      wgmma_wait<0>();
      release(kAtDL);
    });
    uint32_t a[8][4];
    pack_halves(logits[0], 1.0F, 1.0F, a);
    barrier_wait(&s.tile_done, 1 - parity);  // the previous tile's scores have been consumed
    put_blocks(at + pair_of_use(kProbs, n), strip, a);
  }
  fence_async_proxy();
  named_barrier(1 + group, 128);
  {
    uint32_t weights[8][4];  // U
    float mixed[2][32];
    const uint32_t at_p = base + (pair_of_use(kProbs, n) >> 4) + group * (64 * kRowBytes >> 4);
    const auto mix = [&](int half) {
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < kM / 16; ++kk) {
        wgmma_half<1>(mixed[half], along_columns_128(at_p, 0, 16 * kk), along_rows_128(base, kTable + half * kPanelBytes, 16 * kk), kk > 0);
      }
      wgmma_commit();
    };
    mix(0);
    barrier_wait(&s.tokens_full, parity);
    turn0 = s.tokens.turn(row);
    turn8 = s.tokens.turn(row + 8);
    wgmma_wait<0>();
    rotate_back(mixed[0], turn0, turn8, 0, unit, weights);
    mix(1);
    if constexpr (kPanels == 4) {
      wait_full(kAtNext, 0);
      wait_full(kAtDL, 1);
      multiply(pairs, kAtNext, kAtDL, false);
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    if (lane == 0) barrier_arrive(&s.mixed);
    rotate_back(mixed[1], turn0 + zero, turn8 + zero, 32, unit, weights + 4);
    if constexpr (kPanels == 4) {
      wgmma_wait<0>();
      release(kAtDL);
    }
    barrier_wait(&s.mixed, parity);
    put_blocks(at + kTable, strip, weights);
  }
  const auto store = [&](uint32_t pair, int first) {
    const int column = h * 2 * kM + first;
    const int at_row = token() + strip;
    bf16* to = w.d_scores + static_cast<int64_t>(at_row) * stride + column;
    store_strip<2>(pair, strip / 16, &rows, column, at_row, to, stride, tokens() - strip);
  };
  store(at + kTable, kM);

  // dU and dX.
  float clock0, clock8;
  uint32_t weights[8][4];  // dX
  float inverse;           // inverse of the scale of dX
  float ratio;             // scale of dA's operands relative to that of dX
  {
    decay(pairs, strip, s.tokens);
    at = anew_address();
    base = at >> 4;
    float d_weights[64];
    wait_full(kAtScores, 0);
    multiply(d_weights, kAtDX, kAtScores, true);
    float top0, top8;
    top_of_rows(pairs, top0, top8);
    const float unit0 = unit_of(top0);
    const float unit8 = unit_of(top8);
    uint32_t a[8][4];
    pack_halves(pairs, unit0, unit8, a);
    settle(a);
    if constexpr (kPanels == 4) {
      wait_full(kAtDL, 2);
      multiply(d_weights, kAtNext, kAtDL, false);
      wgmma_wait<1>();
      release(kAtDX);
      release(kAtScores);
      wgmma_wait<0>();
      release(kAtDL);
      release(kAtNext);
    } else {
      wgmma_wait<0>();
      release(kAtDX);
      release(kAtScores);
    }
    const float gate0 = power_of_2(s.tokens.gate(row).x);
    const float gate8 = power_of_2(s.tokens.gate(row + 8).x);
    {
      float read0 = 0.0F;
      float read8 = 0.0F;
      for_blocks(at + kTable, strip, [&](int kk, uint32_t place) {
        uint32_t x[4];
        load_blocks(x, place);
        dot_of_blocks(x, d_weights + 8 * kk, read0, read8);
      });
      read0 = quad_sum(read0);
      read8 = quad_sum(read8);
      float* read = w.read[kValues] + h * p.in.T + token() + row;
      const int real = tokens();
      if (lane % 4 == 0 && row < real) read[0] = gate0 * read0;
      if (lane % 4 == 0 && row + 8 < real) read[8] = gate8 * read8;
    }
    scale_rows(d_weights, gate0 * unit0, gate8 * unit8);
    settle(d_weights);
    settle(a);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kC / 16; ++kk) wgmma_half<1>(d_weights, a[kk], along_rows_128(base, kWrites, 16 * kk), 1);
    wgmma_commit();
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(&s.tokens_empty);
    if (const int real = tokens(); real < kC) {  // rows past the tile's end hold another sequence's gradients
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        if (row + i % 4 / 2 * 8 >= real) d_weights[i] = 0.0F;
      }
    }
    Products products;
    float j = pair_of(0);
    for_blocks(at + kTable, strip, [&](int kk, uint32_t place) {
      uint32_t x[4];
      load_blocks(x, place);
      products.add(2 * kk, unpack(x[0]), unpack(x[1]), d_weights, j);
      products.add(2 * kk + 1, unpack(x[2]), unpack(x[3]), d_weights, j + 4.0F);
      j += 8.0F;
    });
    const float back0 = inverse_of_unit(unit0);
    const float back8 = inverse_of_unit(unit8);
    clock0 = quad_sum(-back0 * products.slope0);
    clock8 = quad_sum(-back8 * products.slope8);
    copies_read();
    if (lane == 0) barrier_arrive(&s.weights_done);
    rotate<1>(d_weights, turn0 + zero, turn8 + zero, 0, back0, back8);
    float top = 0.0F;
#pragma unroll
    for (int i = 0; i < 64; i += 2) top = fmaxf(top, fmaxf(fabsf(d_weights[i]), fabsf(d_weights[i + 1])));
    const uint32_t of_warp = __reduce_max_sync(0xFFFFFFFF, __float_as_uint(top));
    if (lane == 0) s.top[strip / 16] = __uint_as_float(of_warp);
    named_barrier(3, 256);
#pragma unroll
    for (int i = 0; i < kConsumerWarps; ++i) top = fmaxf(top, s.top[i]);
    const float factor = 256.0F * unit_of(top);
    inverse = inverse_of_unit(factor);
    pack_halves(d_weights, factor, factor, weights);
    // dA uses the scale of the largest dX so far.
    const float before = unit_of(*const_cast<const volatile float*>(&s.most));
    const float now = fminf(before, unit_of(top));
    if (now != before) scale_rows(d_table, now * inverse_of_unit(before), now * inverse_of_unit(before));
    ratio = unit_of_sum(unit) * now * inverse;
  }

  // dL, dY, and 64 rows of dA over all tokens: p^T dX + dL^T Z.
  at = anew_address();
  base = at >> 4;
  const uint32_t slots = group * (kPanelBytes >> 4);
  {
    uint32_t a[8][4];  // p, then dL
    {
      float d_logits[64];
      scale_halves(weights, ratio, a);
      barrier_wait(&s.empty[kAtDX], parity);  // the other warpgroup may still read what dX, and below dL, replaces
      put_blocks(at + kDX, strip, a);
      barrier_wait(&s.table_full, 1 - parity);  // reloaded after U
      settle(weights);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < kM / 16; ++kk) wgmma_half<0>(d_logits, weights[kk], along_columns_128(base, kTable, 16 * kk), kk > 0);
      wgmma_commit();
      fence_async_proxy();
      named_barrier(3, 256);
      if (threadIdx.x == 128) {  // all threads have read it; they read it next after a barrier of the next tile
        float most = s.most;
#pragma unroll
        for (int i = 0; i < kConsumerWarps; ++i) most = fmaxf(most, s.top[i]);
        s.most = most;
      }
      const uint32_t at_p = base + (pair_of_use(kProbs, n) >> 4) + slots;
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < kC / 16; ++kk) {
        wgmma_half<1, 1>(d_table, along_rows_128(at_p, 0, 16 * kk), along_rows_128(base, kDX, 16 * kk), 1);
      }
      wgmma_commit();
      get_blocks(at + pair_of_use(kProbs, n), strip, a);
      wgmma_wait<1>();
      float mean0, mean8;
      dot_of_rows(
          a, d_logits, [](uint32_t x) { return unpack_half(x); }, mean0, mean8);
      get_blocks(at + pair_of_use(kProbs, n), strip, a);  // loaded again: otherwise the compiler keeps them as fp32
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        uint32_t& row0 = a[i / 2][i % 2 * 2];
        uint32_t& row8 = a[i / 2][i % 2 * 2 + 1];
        const float2 x0 = unpack_half(row0);
        const float2 x8 = unpack_half(row8);
        row0 = pack_half(x0.x * (d_logits[4 * i] - mean0), x0.y * (d_logits[4 * i + 1] - mean0));
        row8 = pack_half(x8.x * (d_logits[4 * i + 2] - mean8), x8.y * (d_logits[4 * i + 3] - mean8));
      }
    }
    barrier_wait(&s.empty[kAtDL], parity_of(kPanels == 4 ? 2 : 0, n));
    {
      uint32_t x[8][4];
      scale_halves(a, kScoreUnit * unit * ratio, x);
      put_blocks(at + pair_of_use(kDL, n), strip, x);
    }
    float d_scores[64];
    settle(a);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma_half<1>(d_scores, a[kk], along_rows_128(base, kTable, 16 * kk), kk > 0);
    wgmma_commit();
    fence_async_proxy();
    wgmma_wait<1>();
    if (lane == 0) barrier_arrive(&s.probs_done);
    named_barrier(3, 256);
    barrier_wait(&s.again_full, parity);
    const uint32_t at_l = base + (pair_of_use(kDL, n) >> 4) + slots;
    const uint32_t at_z = base + (pair_of_use(kScores, n) >> 4);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kC / 16; ++kk) wgmma_half<1, 1>(d_table, along_rows_128(at_l, 0, 16 * kk), along_rows_128(at_z, 0, 16 * kk), 1);
    wgmma_commit();
    wgmma_wait<1>();
    const float factor = unit * unit * inverse;
    const int64_t scalars = h * p.in.T + token() + row;
    const int real = tokens();
    Products products;
    float j = pair_of(0);
    for_blocks(at + pair_of_use(kScores, n), strip, [&](int kk, uint32_t place) {
      uint32_t z[4];
      load_blocks(z, place);
      products.add(2 * kk, unpack_half(z[0]), unpack_half(z[1]), d_scores, j);
      products.add(2 * kk + 1, unpack_half(z[2]), unpack_half(z[3]), d_scores, j + 4.0F);
      j += 8.0F;
    });
    clock0 = w.slots.turn * fmaf(kScoreUnit * factor, quad_sum(products.slope0), clock0);
    clock8 = w.slots.turn * fmaf(kScoreUnit * factor, quad_sum(products.slope8), clock8);
    const float along0 = kScoreUnit * factor * quad_sum(products.dot0);
    const float along8 = kScoreUnit * factor * quad_sum(products.dot8);
    if (lane % 4 == 0 && row < real) {
      w.turned[2][scalars] = clock0;
      w.along[scalars] = along0;
    }
    if (lane % 4 == 0 && row + 8 < real) {
      w.turned[2][scalars + 8] = clock8;
      w.along[scalars + 8] = along8;
    }
    rotate<-1>(d_scores, turn0 + zero, turn8 + zero, 0, factor * p.in.scale * s.query_rate[parity][row],
               factor * p.in.scale * s.query_rate[parity][row + 8]);
    pack_rows(d_scores, a);
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(&s.tile_done);
    barrier_wait(&s.tile_done, parity);
    put_blocks(at + pair_of_use(kDL, n), strip, a);
  }
  store(at + pair_of_use(kDL, n), 0);
}

template <int kPanels>
__global__ void __launch_bounds__(kReadoutThreads, 1) cyclic_flow_backward_readout_sm90(const __grid_constant__ ReadoutParams params) {
  extern __shared__ __align__(1024) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const Sm90BackwardParams& p = params.p;
  const Workspace& w = params.w;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPlaces; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kConsumerWarps);
    }
    for (uint64_t* barrier : {&s.scores_full, &s.again_full, &s.table_full}) barrier_init(barrier, 1);
    barrier_init(&s.tokens_full, kFeeders);
    for (uint64_t* barrier : {&s.tokens_empty, &s.scored, &s.mixed, &s.weights_done, &s.probs_done, &s.tile_done, &s.stored}) {
      barrier_init(barrier, kConsumerWarps);
    }
    fence_barrier_init();
    s.unit = w.table_unit[blockIdx.x % p.in.H];
    s.zero = 0;
    s.most = 0.0F;
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      feed_copies<kPanels>(params, s, Share(p.in));
    } else if (threadIdx.x >= 32) {
      feed_tokens<false>(p.in, params.forward, s, Share(p.in));
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    barrier_wait(&s.table_full, 0);
    const int strip = static_cast<int>(__shfl_sync(0xFFFFFFFF, 16 * (threadIdx.x / 32 - 4), 0));
    const volatile int& count = s.count;
    float d_table[64] = {};
#pragma unroll 1
    for (int n = 0; n < count; ++n) readout_of_half<kPanels>(p, w, params.rows, s, strip, n, d_table);
    copies_read();
    const float inverse = inverse_of_unit(unit_of_sum(s.unit) * unit_of(s.most));
    float4* to = w.d_tables + static_cast<int64_t>(blockIdx.x) * (kM * kM / 4) + threadIdx.x - 128;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      to[i * 256] =
          make_float4(inverse * d_table[4 * i], inverse * d_table[4 * i + 1], inverse * d_table[4 * i + 2], inverse * d_table[4 * i + 3]);
    }
  }
}

}  // namespace

cudaError_t backward_readout(const Sm90BackwardParams& p, cudaStream_t stream) {
  ReadoutParams params = {p, workspace_of(p), cyclic_flow::workspace_of(p.in), {}, {}, {}, {}, {}, {}};
  const int64_t width = static_cast<int64_t>(p.in.H) * p.in.V;
  const int64_t slots = static_cast<int64_t>(p.in.H) * kM;
  const int state = state_width(p.in);
  cudaError_t status = make_tensor_map(params.scores, params.w.scores, p.in.T, slots, slots, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.grad_o, p.grad_o, p.in.T, width, width, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.v, p.in.v, p.in.T, width, p.in.v_stride, kC);
  if (status == cudaSuccess) {
    status = make_tensor_map(params.states, params.w.states, (static_cast<int64_t>(p.in.tiles) * p.in.H * 2 + 1) * kM, state, state, kM);
  }
  if (status == cudaSuccess) status = make_tensor_map(params.table, params.w.table, static_cast<int64_t>(p.in.H) * kM, kM, kM, kM);
  if (status == cudaSuccess) status = make_tensor_map(params.rows, params.w.d_scores, p.in.T, 2 * slots, 2 * slots, 16);
  if (status != cudaSuccess) return status;
  return with_panel_count(p.in.V / kPanelColumns, [&](auto panels) {
    const auto kernel = &cyclic_flow_backward_readout_sm90<decltype(panels)::value>;
    const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
    if (set != cudaSuccess) return set;
    kernel<<<readout_blocks_of_head(p) * p.in.H, kReadoutThreads, sizeof(Shared), stream>>>(params);
    return cudaGetLastError();
  });
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
