// The readout stage of cyclic_flow's backward on Hopper (docs/operator.md, "Chunks"): the slot weights again from the scores, then
//   dU = D * (dO V^T) W + a (dO S_V^T)      dX = rot(dU)      dL = p * (dX A^T - rowsum(p * dX A^T))
//   dY = unrot(dL A)                        dA += dL^T Z + p^T dX
// One tile of one head at a time, with no dependence between tiles. A block stays with its head, takes every so-manieth tile and sums its
// own dA in memory. Its first warpgroup feeds, the other two own 64 tokens of the tile each and 64 rows of dA. Overwrites weights (U),
// d_scores, d_tables, read[kValues], along and turned[2] of the workspace.
//
// Shared memory, 227 KB, in panels of [128 rows, 64 columns]:
//   pairs 0, 3   two panels each: the scores Z of this tile, and those of the next; which is which alternates
//   pairs 1, 2   together with the pair of the next scores a ring of six panels: dO, v, value state for each quarter of the columns. When
//                both warpgroups are done with them, dX and dL
//   probs        p
//   table, writes, tokens   as in forward's outputs
// All products of the readout are in half precision: p, the table and Z as in forward; gradients are divided by a power of two, found for
// each row of pairs and for each tile of dX and dL, so that gradients of any size keep their bits.
#include <cstddef>

#include "cyfa/kernels/cyclic_flow/sm90_backward_readout.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {
namespace {

constexpr int kReadoutThreads = 384;
constexpr int kConsumerWarps = 8;
constexpr int kPanels = kD / kPanelColumns;
constexpr int kPlaces = 6;           // of the ring
constexpr int kItems = 3 * kPanels;  // dO, v, value state
static_assert(kItems == 2 * kPlaces, "a barrier's parity is known from the item");
constexpr int kPairBytes = 2 * kPanelBytes;

struct ReadoutParams {
  Sm90BackwardParams p;
  Workspace w;
  cyclic_flow::Workspace forward;
  CUtensorMap scores, grad_o, v, states, table;
};

struct Shared {
  char pairs[4][kPairBytes];
  char probs[kPairBytes];
  char table[kPairBytes];
  char writes[kPairBytes];
  Tokens tokens;
  float query_rate[2][kC];    // of this tile and the next
  float top[kConsumerWarps];  // largest of |dX| of a warp's rows
  uint64_t full[kPlaces], empty[kPlaces];
  float unit;  // of the table
  uint64_t scores_full, tile_done, tokens_full, tokens_empty, table_full;
};
static_assert(sizeof(Shared) <= 227 * 1024);
constexpr int kProbs = offsetof(Shared, probs);
constexpr int kTable = offsetof(Shared, table);
constexpr int kWrites = offsetof(Shared, writes);
constexpr int kDX = kPairBytes;
constexpr int kDL = 2 * kPairBytes;

// Distance of the scores in the block's tiles of this parity, and of an item of the ring, from the start of shared memory.
__device__ __forceinline__ int scores_place(int parity) { return parity * 3 * kPairBytes; }
__device__ __forceinline__ int place_of(int item, int parity) {
  const int place = item % kPlaces;
  return place < 4 ? kPairBytes + place * kPanelBytes : scores_place(1 - parity) + (place - 4) * kPanelBytes;
}

// All copies of the block's tiles, in the order in which they are used.
__device__ __forceinline__ void feed_copies(const ReadoutParams& params, Shared& s, const Share& share) {
  const Sm90ForwardParams& p = params.p.in;
  const int h = share.h;
  const uint32_t base = shared_address(&s);
  const auto load_scores = [&](int t, int parity) {
    barrier_expect(&s.scores_full, kPairBytes);
    for (int panel = 0; panel < 2; ++panel) {
      copy_box(base + scores_place(parity) + panel * kPanelBytes, &params.scores, h * kM + panel * kPanelColumns,
               static_cast<int>(p.tile[t].token), &s.scores_full);
    }
  };
  barrier_expect(&s.table_full, kPairBytes);
  for (int panel = 0; panel < 2; ++panel) {
    copy_box(base + kTable + panel * kPanelBytes, &params.table, panel * kPanelColumns, h * kM, &s.table_full);
  }
  load_scores(share.last, 0);
  int parity = 0;
  for (int t = share.last; t >= 0; t -= share.step, parity ^= 1) {
    const int token = static_cast<int>(p.tile[t].token);
    const int state = state_row(p, t, h, kValues);
    barrier_wait(&s.tile_done, 1 - parity);
    for (int item = 0; item < kItems; ++item) {
      const int panel = item / 3;
      const int kind = item % 3;
      const int place = item % kPlaces;
      if (item >= kPlaces) barrier_wait(&s.empty[place], 0);
      barrier_expect(&s.full[place], kPanelBytes);
      copy_box(base + place_of(item, parity),
               kind == 0   ? &params.grad_o
               : kind == 1 ? &params.v
                           : &params.states,
               (kind == 2 ? 0 : h * kD) + panel * kPanelColumns, kind == 2 ? state : token, &s.full[place]);
    }
    if (t >= share.step) {
      barrier_wait(&s.empty[4], 1);
      barrier_wait(&s.empty[5], 1);
      load_scores(t - share.step, 1 - parity);
    }
  }
}

// One half of a tile: the 64 tokens of which the warp's are strip .. strip + 15.
__device__ __forceinline__ void readout_of_half(const Sm90BackwardParams& p, const Workspace& w, Shared& s, int strip, int h, int parity,
                                                bool first) {
  const int lane = threadIdx.x % 32;
  const volatile float& unit = s.unit;  // read where it is needed: registers are short
  const int group = strip / 64;
  const int row = strip + lane / 4;  // and row + 8
  // Anew in every part, else the operands' descriptors are kept from part to part, and registers run out.
  uint32_t at = anew(shared_address(&s));
  uint32_t base = at >> 4;
  const int stride = p.in.H * kD;

  // The slot weights again: p from the scores, U = unrot(p A).
  uint32_t weights[8][4];  // U
  uint32_t turn0, turn8;
  barrier_wait(&s.scores_full, parity);
  {
    uint32_t a[8][4];
    float logits[1][64];
    float mixed[64];
#pragma unroll
    for (int kk = 0; kk < 8; ++kk) load_blocks(a[kk], block_place(at + scores_place(parity), strip, kk));
    settle(a);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma_half<0>(logits[0], a[kk], along_columns_128(base, kTable, 16 * kk), kk > 0);
    wgmma_commit();
    wgmma_wait<0>();
    softmax_rows(logits, kScoreUnit * unit, p.in.M - 1);
    pack_halves(logits[0], 1.0F, 1.0F, a);
    barrier_wait(&s.tile_done, 1 - parity);  // the last tile's probs
    put_blocks(at + kProbs, strip, a);
    settle(a);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma_half<1>(mixed, a[kk], along_rows_128(base, kTable, 16 * kk), kk > 0);
    wgmma_commit();
    barrier_wait(&s.tokens_full, parity);
    turn0 = s.tokens.turn(row);
    turn8 = s.tokens.turn(row + 8);
    wgmma_wait<0>();
    scale_rows(mixed, unit, unit);
    rotate<-1>(mixed, turn0, turn8);
    pack_rows(mixed, weights);
  }
  const int token = s.tokens.token;
  const int tokens = s.tokens.tokens;
  store_packed(weights, w.weights + (static_cast<int64_t>(token + strip) * p.in.H + h) * kD, stride, tokens - strip);

  // dU and dX, a quarter of the columns at a time.
  at = anew(at);
  base = at >> 4;
  float clock0, clock8;
  float inverse;  // of what dX is multiplied by
  {
    float pairs[64] = {};
    float d_weights[64] = {};
    // Each quarter's panels are given back when the next quarter's products are under way.
    const auto release = [&](int panel) {
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (lane == 0) barrier_arrive(&s.empty[(3 * panel + i) % kPlaces]);
      }
    };
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      const int item = 3 * panel;
      const int turn = item / kPlaces;
#pragma unroll
      for (int i = 0; i < 3; ++i) barrier_wait(&s.full[(item + i) % kPlaces], turn);
      const uint32_t at_o = base + group * (64 * kRowBytes >> 4) + (place_of(item, parity) >> 4);
      const uint32_t at_v = base + (place_of(item + 1, parity) >> 4);
      const uint32_t at_s = base + (place_of(item + 2, parity) >> 4);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) wgmma<0>(pairs, along_columns_128(at_o, 0, 16 * kk), along_columns_128(at_v, 0, 16 * kk), 1);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) wgmma<0>(d_weights, along_columns_128(at_o, 0, 16 * kk), along_columns_128(at_s, 0, 16 * kk), 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (panel > 0) release(panel - 1);
    }
    wgmma_wait<0>();
    release(kPanels - 1);
    scale_rows(d_weights, power_of_2(s.tokens.gate(row).x), power_of_2(s.tokens.gate(row + 8).x));
    {
      float read0, read8;
      dot_of_rows(weights, d_weights, read0, read8);
      float* read = w.read[kValues] + h * p.in.T + token;
      if (lane % 4 == 0 && row < tokens) read[row] = read0;
      if (lane % 4 == 0 && row + 8 < tokens) read[row + 8] = read8;
    }
    settle(weights);  // else they are kept unpacked
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
    // Rows past the tile's end hold another sequence's gradients.
    const float back0 = row < tokens ? inverse_of_unit(unit0) : 0.0F;
    const float back8 = row + 8 < tokens ? inverse_of_unit(unit8) : 0.0F;
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      d_weights[i] = row < tokens ? d_weights[i] * back0 : 0.0F;
      d_weights[i + 1] = row < tokens ? d_weights[i + 1] * back0 : 0.0F;
      d_weights[i + 2] = row + 8 < tokens ? d_weights[i + 2] * back8 : 0.0F;
      d_weights[i + 3] = row + 8 < tokens ? d_weights[i + 3] * back8 : 0.0F;
    }
    Products products;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      products.add(i, unpack(weights[i / 2][i % 2 * 2]), unpack(weights[i / 2][i % 2 * 2 + 1]), d_weights, pair_of(i));
    }
    clock0 = -products.slope0;
    clock8 = -products.slope8;
    rotate<1>(d_weights, turn0, turn8);
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
    pack_halves(d_weights, factor, factor, weights);  // dX
  }
  // The other warpgroup may still read what dX and dL replace.
#pragma unroll
  for (int i = 0; i < 4; ++i) barrier_wait(&s.empty[i], 1);
  put_blocks(at + kDX, strip, weights);

  // dL, dY.
  at = anew(at);
  base = at >> 4;
  {
    float d_logits[64];
    settle(weights);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma_half<0>(d_logits, weights[kk], along_columns_128(base, kTable, 16 * kk), kk > 0);
    wgmma_commit();
    uint32_t a[8][4];  // p, then dL
#pragma unroll
    for (int kk = 0; kk < 8; ++kk) load_blocks(a[kk], block_place(at + kProbs, strip, kk));
    wgmma_wait<0>();
    float mean0 = 0.0F;
    float mean8 = 0.0F;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 x0 = unpack_half(a[i / 2][i % 2 * 2]);
      const float2 x8 = unpack_half(a[i / 2][i % 2 * 2 + 1]);
      mean0 = fmaf(x0.x, d_logits[4 * i], fmaf(x0.y, d_logits[4 * i + 1], mean0));
      mean8 = fmaf(x8.x, d_logits[4 * i + 2], fmaf(x8.y, d_logits[4 * i + 3], mean8));
    }
    mean0 = quad_sum(mean0);
    mean8 = quad_sum(mean8);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      uint32_t& row0 = a[i / 2][i % 2 * 2];
      uint32_t& row8 = a[i / 2][i % 2 * 2 + 1];
      const float2 x0 = unpack_half(row0);
      const float2 x8 = unpack_half(row8);
      row0 = pack_half(x0.x * (d_logits[4 * i] - mean0), x0.y * (d_logits[4 * i + 1] - mean0));
      row8 = pack_half(x8.x * (d_logits[4 * i + 2] - mean8), x8.y * (d_logits[4 * i + 3] - mean8));
    }
    put_blocks(at + kDL, strip, a);
    float d_scores[64];
    settle(a);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma_half<1>(d_scores, a[kk], along_rows_128(base, kTable, 16 * kk), kk > 0);
    wgmma_commit();
    wgmma_wait<0>();
    fence_async_proxy();
    const float factor = unit * unit * inverse;
    scale_rows(d_scores, factor, factor);
    const int64_t scalars = h * p.in.T + token + row;
    Products products;
#pragma unroll
    for (int kk = 0; kk < 8; ++kk) {
      uint32_t z[4];
      load_blocks(z, block_place(at + scores_place(parity), strip, kk));
      products.add(2 * kk, unpack_half(z[0]), unpack_half(z[1]), d_scores, pair_of(2 * kk));
      products.add(2 * kk + 1, unpack_half(z[2]), unpack_half(z[3]), d_scores, pair_of(2 * kk + 1));
    }
    clock0 = w.slots.turn * quad_sum(fmaf(kScoreUnit, products.slope0, clock0));
    clock8 = w.slots.turn * quad_sum(fmaf(kScoreUnit, products.slope8, clock8));
    const float along0 = kScoreUnit * quad_sum(products.dot0);
    const float along8 = kScoreUnit * quad_sum(products.dot8);
    if (lane % 4 == 0 && row < tokens) {
      w.turned[2][scalars] = clock0;
      w.along[scalars] = along0;
    }
    if (lane % 4 == 0 && row + 8 < tokens) {
      w.turned[2][scalars + 8] = clock8;
      w.along[scalars + 8] = along8;
    }
    scale_rows(d_scores, p.in.scale * s.query_rate[parity][row], p.in.scale * s.query_rate[parity][row + 8]);
    rotate<-1>(d_scores, turn0, turn8);
    pack_rows(d_scores, a);
    store_packed(a, w.d_scores + (static_cast<int64_t>(token + strip) * p.in.H + h) * kD, stride, tokens - strip);
  }
  // dA, 64 of its rows over all tokens; dL^T Z and p^T dX have factors of their own.
  at = anew(at);
  base = at >> 4;
  {
    uint32_t block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    float4* d_table = w.d_tables + static_cast<int64_t>(block) * (kM * kM / 4) + anew(threadIdx.x) - 128;
    float sum[64];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float4 x = first ? make_float4(0.0F, 0.0F, 0.0F, 0.0F) : d_table[i * 256];
      sum[4 * i] = x.x;
      sum[4 * i + 1] = x.y;
      sum[4 * i + 2] = x.z;
      sum[4 * i + 3] = x.w;
    }
    named_barrier(3, 256);
    const uint32_t base_of_slots = base + group * (kPanelBytes >> 4);
    float of_scores[64];
    float of_probs[64];
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kC / 16; ++kk) {
      wgmma_half<1, 1>(of_scores, along_rows_128(base_of_slots, kDL, 16 * kk),
                       along_rows_128(base + (scores_place(parity) >> 4), 0, 16 * kk), kk > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int kk = 0; kk < kC / 16; ++kk) {
      wgmma_half<1, 1>(of_probs, along_rows_128(base_of_slots, kProbs, 16 * kk), along_rows_128(base, kDX, 16 * kk), kk > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    const float factor = inverse * unit * kScoreUnit;
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i] = fmaf(factor, of_scores[i], sum[i]);
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i] = fmaf(inverse, of_probs[i], sum[i]);
    if (lane == 0) barrier_arrive(&s.tile_done);
#pragma unroll
    for (int i = 0; i < 16; ++i) d_table[i * 256] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  }
}

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
    barrier_init(&s.scores_full, 1);
    barrier_init(&s.tile_done, kConsumerWarps);
    barrier_init(&s.tokens_full, kFeeders);
    barrier_init(&s.tokens_empty, kConsumerWarps);
    barrier_init(&s.table_full, 1);
    fence_barrier_init();
    s.unit = w.table_unit[blockIdx.x % p.in.H];
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
    barrier_wait(&s.table_full, 0);
    const int strip = static_cast<int>(__shfl_sync(0xFFFFFFFF, 16 * (threadIdx.x / 32 - 4), 0));
    int parity = 0;
    for (int t = share.last; t >= 0; t -= share.step, parity ^= 1) {
      readout_of_half(p, w, s, strip, share.h, parity, t == share.last);
    }
  }
}

}  // namespace

cudaError_t backward_readout(const Sm90BackwardParams& p, cudaStream_t stream) {
  ReadoutParams params = {p, workspace_of(p), cyclic_flow::workspace_of(p.in), {}, {}, {}, {}, {}};
  const int64_t width = static_cast<int64_t>(p.in.H) * kD;
  cudaError_t status = make_tensor_map(params.scores, params.w.scores, p.in.T, width / 2, width / 2, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.grad_o, p.grad_o, p.in.T, width, width, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.v, p.in.v, p.in.T, width, p.in.v_stride, kC);
  if (status == cudaSuccess) {
    status = make_tensor_map(params.states, params.w.states, (static_cast<int64_t>(p.in.tiles) * p.in.H * 2 + 1) * kM, kD, kD, kM);
  }
  if (status == cudaSuccess) status = make_tensor_map(params.table, params.w.table, static_cast<int64_t>(p.in.H) * kM, kM, kM, kM);
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(cyclic_flow_backward_readout_sm90, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(Shared)));
  }
  if (status != cudaSuccess) return status;
  cyclic_flow_backward_readout_sm90<<<readout_blocks_of_head(p) * p.in.H, kReadoutThreads, sizeof(Shared), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
