// Stages 1 to 5 of docs/operator.md on Hopper, one tile at a time with no dependence between thread blocks. A persistent block stays with
// one head and takes every (gridDim.x / H)-th tile. Warp roles: thread 0 issues TMA copies, warps 1 to 3 compute write vectors and decay
// factors (token warps), warpgroups 1 and 2 own 64 tokens of the tile each. Called by sm90_forward.cu. Overwrites o and, if backward
// follows, the scores and 1 / rms of q.
//
// Shared memory, 227 KB:
//   ring    10 buffers of one panel, [128 rows, 64 columns]. A tile has 20 panels, two per buffer: q, k and key state for each quarter
//           of the columns (12), the value state (4), v (4). The next tile's copies run during this tile's readout. Narrower heads have
//           fewer panels, one per buffer where possible.
//   table   the head's readout table in half precision, resident
//   writes  the tile's write vectors
//   tokens  gates and decay factors of the tile's tokens
#include <cuda_runtime.h>

#include <cstddef>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_tokens.cuh"
#include "cyfa/kernels/sm90/tma.cuh"

namespace cyfa::cyclic_flow {
namespace {

using namespace sm90;

constexpr int kThreads = 384;
constexpr int kConsumerWarps = 8;
constexpr int kPlaces = 10;

// Work of a launch: all stages with 128 slots or with fewer; or, for one of two sections, stages 1 and 2 up to the rotated scores
// (sm90_readout.cu and sm90_forward_sections.cu do the rest).
enum class Work { kAllSlots, kFewerSlots, kScores };

// The panels of a tile in copy order (items) and their ring buffers. A buffer serves one or two panels per tile; with two, the item
// determines the barrier's parity. The value state's panels are contiguous, and so are those of v. v reuses buffers of the scores'
// operands.
template <Work kWorkOf, int kKeyPanelsOf, int kValuePanelsOf>
struct Ring {
  static constexpr Work kWork = kWorkOf;
  static constexpr int kKeyPanels = kKeyPanelsOf;
  static constexpr int kValuePanels = kValuePanelsOf;
  static constexpr int kState = 3 * kKeyPanels;  // first items of the value state and of v
  static constexpr int kValues = kState + kValuePanels;
  static constexpr int kItems = kWork == Work::kScores ? kState : kValues + kValuePanels;
  static constexpr bool kShort = kKeyPanels == 1 && kValuePanels == 4;  // v has more panels than the scores' operands have buffers
  static constexpr int kCount = kItems <= kPlaces ? kItems : kKeyPanels == 2 ? kPlaces : kItems / 2;

  static __host__ __device__ constexpr int place(int item) {
    if (kShort) return item < kState ? item : item < kValues ? item + 1 : item - kValues;
    return item % kCount;
  }
  // Barrier parity of an item, in a tile with the given parity.
  static __host__ __device__ constexpr int parity(int item, int of_tile) {
    if (kShort) return place(item) < kState ? (item < kState ? 0 : 1) : of_tile;
    if (kItems % kCount == 0 && kItems > kCount) return item / kCount;
    return place(item) + kCount < kItems ? item / kCount : of_tile;
  }
};
static_assert(Ring<Work::kAllSlots, 4, 4>::kCount == kPlaces);

struct OutputsParams {
  Sm90ForwardParams p;
  Workspace w;
  CUtensorMap q, k, v, states, table;
};

struct Shared {
  char ring[kPlaces * kPanelBytes];
  char table[kM * kM * 2];
  char writes[kC * kM * 2];
  float weight[kD];  // product of the norm weights of q and k
  Tokens tokens;
  uint64_t full[kPlaces];
  uint64_t empty[kPlaces];
  uint64_t tokens_full, tokens_empty, table_full;
};
static_assert(sizeof(Shared) <= 227 * 1024);
constexpr int kTable = offsetof(Shared, table);
constexpr int kWrites = offsetof(Shared, writes);

template <typename Ring>
__device__ __forceinline__ char* place_of(Shared& s, int item) {
  return s.ring + Ring::place(item) * kPanelBytes;
}
template <typename Ring>
__device__ __forceinline__ void wait_for(Shared& s, int item, int parity_of_tile) {
  barrier_wait(&s.full[Ring::place(item)], Ring::parity(item, parity_of_tile));
}
template <typename Ring>
__device__ __forceinline__ void release(Shared& s, int item) {
  if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[Ring::place(item)]);
}

// Issues all copies of the block's tiles in order of use.
template <typename Ring>
__device__ __forceinline__ void feed_copies(const OutputsParams& params, Shared& s, const Share& share) {
  const Sm90ForwardParams& p = params.p;
  const int h = share.h;
  if (Ring::kWork != Work::kScores) {
    barrier_expect(&s.table_full, kM * kM * 2);
    for (int panel = 0; panel < kM / kPanelColumns; ++panel) {
      copy_box(shared_address(s.table + panel * kPanelBytes), &params.table, panel * kPanelColumns, h * kM, &s.table_full);
    }
  }
  int parity = 0;
  for (int t = share.last; t >= 0; t -= share.step, parity ^= 1) {
    const int token = static_cast<int>(p.tile[t].token);
    const int key_state = state_row(p, t, h, 0);
    const int value_state = state_row(p, t, h, 1);
    for (int item = 0; item < Ring::kItems; ++item) {
      const bool keys = item < Ring::kState;
      const int panel = keys ? item / 3 : (item - Ring::kState) % Ring::kValuePanels;
      const int kind = keys ? item % 3 : item < Ring::kValues ? 3 : 4;
      const CUtensorMap* map = kind == 0 ? &params.q : kind == 1 ? &params.k : kind == 4 ? &params.v : &params.states;
      const bool is_state = kind == 2 || kind == 3;
      const int place = Ring::place(item);
      barrier_wait(&s.empty[place], 1 - Ring::parity(item, parity));
      barrier_expect(&s.full[place], kPanelBytes);
      const int panels = keys ? Ring::kKeyPanels : Ring::kValuePanels;
      copy_box(shared_address(place_of<Ring>(s, item)), map, ((is_state ? 0 : h * panels) + panel) * kPanelColumns,
               kind == 2   ? key_state
               : kind == 3 ? value_state
                           : token,
               &s.full[place], evict_last());
    }
  }
}

// Rotates the rows of a 64 x 128 accumulator by U(clock) and converts them to half precision as the next A operand. `turned` keeps the
// rotations in half precision for unrotate_and_pack.
__device__ __forceinline__ void rotate_and_pack(const float (&d)[64], uint32_t turn0, uint32_t turn8, int first_pair, uint32_t (&a)[8][4],
                                                uint32_t (&turned)[16][2]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 z0 = rotation(turn0, first_pair + 4 * i + threadIdx.x % 4);
    const float2 z8 = rotation(turn8, first_pair + 4 * i + threadIdx.x % 4);
    const float* x = d + 4 * i;
    a[i / 2][i % 2 * 2] = pack_half(x[0] * z0.x - x[1] * z0.y, x[0] * z0.y + x[1] * z0.x);
    a[i / 2][i % 2 * 2 + 1] = pack_half(x[2] * z8.x - x[3] * z8.y, x[2] * z8.y + x[3] * z8.x);
    turned[i][0] = pack_half(z0.x, z0.y);
    turned[i][1] = pack_half(z8.x, z8.y);
  }
}

// Rotates the rows by U(-clock), scales them and converts them to half precision as the next A operand. `started` is the same in bf16,
// multiplied by the decay from the tile's start.
__device__ __forceinline__ void unrotate_and_pack(const float (&d)[64], const uint32_t (&turned)[16][2], float factor0, float factor8,
                                                  float start0, float start8, uint32_t (&a)[8][4], uint32_t (&started)[8][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float2 z0 = unpack_half(turned[i][0]);
    float2 z8 = unpack_half(turned[i][1]);
    z0 = make_float2(z0.x * factor0, z0.y * factor0);
    z8 = make_float2(z8.x * factor8, z8.y * factor8);
    const float* x = d + 4 * i;
    const float2 u0 = make_float2(x[0] * z0.x + x[1] * z0.y, x[1] * z0.x - x[0] * z0.y);
    const float2 u8 = make_float2(x[2] * z8.x + x[3] * z8.y, x[3] * z8.x - x[2] * z8.y);
    a[i / 2][i % 2 * 2] = pack_half(u0.x, u0.y);
    a[i / 2][i % 2 * 2 + 1] = pack_half(u8.x, u8.y);
    started[i / 2][i % 2 * 2] = pack(u0.x * start0, u0.y * start0);
    started[i / 2][i % 2 * 2 + 1] = pack(u8.x * start8, u8.y * start8);
  }
}

__device__ __forceinline__ void scale_rows(float (&d)[64], float factor0, float factor8) {
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    d[i] *= factor0;
    d[i + 1] *= factor0;
    d[i + 2] *= factor8;
    d[i + 3] *= factor8;
  }
}

// exp(unit * (logit - row maximum)) over the m active slots in half precision, and the row sums.
template <bool kAllSlots>
__device__ __forceinline__ void softmax_and_pack(float (&d)[64], float unit, int m, float& sum0, float& sum8, uint32_t (&a)[8][4]) {
  mask_slots<kAllSlots>(d, m);
  float top0 = -INFINITY;
  float top8 = -INFINITY;
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    top0 = fmaxf(top0, fmaxf(d[i], d[i + 1]));
    top8 = fmaxf(top8, fmaxf(d[i + 2], d[i + 3]));
  }
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
    top0 = fmaxf(top0, __shfl_xor_sync(0xFFFFFFFF, top0, lanes));
    top8 = fmaxf(top8, __shfl_xor_sync(0xFFFFFFFF, top8, lanes));
  }
  constexpr float kLog2E = 1.4426950408889634F;
  const float rate = unit * kLog2E;
  const float shift0 = -top0 * rate;
  const float shift8 = -top8 * rate;
  sum0 = 0.0F;
  sum8 = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float x0 = exp2_fast(fmaf(d[4 * i], rate, shift0));
    const float x1 = exp2_fast(fmaf(d[4 * i + 1], rate, shift0));
    const float y0 = exp2_fast(fmaf(d[4 * i + 2], rate, shift8));
    const float y1 = exp2_fast(fmaf(d[4 * i + 3], rate, shift8));
    sum0 += x0 + x1;
    sum8 += y0 + y1;
    a[i / 2][i % 2 * 2] = pack_half(x0, x1);
    a[i / 2][i % 2 * 2 + 1] = pack_half(y0, y1);
  }
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
    sum0 += __shfl_xor_sync(0xFFFFFFFF, sum0, lanes);
    sum8 += __shfl_xor_sync(0xFFFFFFFF, sum8, lanes);
  }
}

// One half tile: the warpgroup's 64 tokens, of which this warp owns strip .. strip + 15. Both halves run the same code of about 3,000
// instructions, rolled where possible: with twice the code, instruction fetch takes a third of the time.
template <typename Ring>
__device__ __forceinline__ void outputs_of_half(const Sm90ForwardParams& p, const Workspace& w, Shared& s, int strip, int h, int parity,
                                                float unit) {
  constexpr Work kWork = Ring::kWork;
  constexpr int kKeyWidth = Ring::kKeyPanels * kPanelColumns;
  const int lane = threadIdx.x % 32;
  const int row = strip + lane / 4;  // and row + 8
  uint32_t base = shared_address(&s) >> 4;
  asm volatile("" : "+r"(base));  // otherwise operand descriptors are kept across tiles and registers spill
  const auto place = [](int item) { return Ring::place(item) * kPanelBytes; };
  const auto wait = [&](int item) { wait_for<Ring>(s, item, parity); };
  uint32_t a[8][4];
  float pairs[64] = {};
  float scores[64] = {};

  // Stages 1 and 2, 64 columns at a time. The norm weights are applied to q here, 1 / rms of q and k to the products.
  float rate0, rate8;
  {
    float squares0 = 0.0F;
    float squares8 = 0.0F;
    const int q_row = strip + lane % 16;
    uint32_t crossed[4][4];  // q times both norm weights; multiplied with the raw keys and with the key state
#pragma unroll 1
    for (int panel = 0; panel < Ring::kKeyPanels; ++panel) {
      const int item = 3 * panel;
      const uint32_t at_q = (base << 4) + place(item) + q_row * kRowBytes;
      const uint32_t at_k = base + (place(item + 1) >> 4);
      const uint32_t at_s = base + (place(item + 2) >> 4);
      wait(item);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
        load_blocks(crossed[kk], at_q + (((2 * kk + lane / 16) ^ (q_row & 7)) << 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 factor = *reinterpret_cast<const float2*>(&s.weight[panel * kPanelColumns + 16 * kk + 8 * (i / 2) + 2 * (lane % 4)]);
          const float2 f = unpack(crossed[kk][i]);
          float& squares = i % 2 == 0 ? squares0 : squares8;
          squares = fmaf(f.x, f.x, fmaf(f.y, f.y, squares));
          crossed[kk][i] = pack(f.x * factor.x, f.y * factor.y);
        }
      }
      __syncwarp();
      release<Ring>(s, item);
      wait(item + 1);
      wait(item + 2);
      settle(crossed);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) wgmma<0>(pairs, crossed[kk], along_columns_128(at_k, 0, 16 * kk), 1);
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) wgmma<0>(scores, crossed[kk], along_columns_128(at_s, 0, 16 * kk), 1);
      wgmma_commit();
      wgmma_wait<0>();
      release<Ring>(s, item + 1);
      release<Ring>(s, item + 2);
    }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) {
      squares0 += __shfl_xor_sync(0xFFFFFFFF, squares0, lanes);
      squares8 += __shfl_xor_sync(0xFFFFFFFF, squares8, lanes);
    }
    const bool norm = p.q_norm_weight != nullptr;
    rate0 = norm ? rsqrtf(squares0 / kKeyWidth + p.norm_eps) : 1.0F;
    rate8 = norm ? rsqrtf(squares8 / kKeyWidth + p.norm_eps) : 1.0F;
  }
  barrier_wait(&s.tokens_full, parity);
  const int token = s.tokens.token;
  const int tokens = s.tokens.tokens;
  const uint32_t* turns = w.turn + h * p.T + token;
  const uint32_t turn0 = row < tokens ? turns[row] : 0;
  const uint32_t turn8 = row + 8 < tokens ? turns[row + 8] : 0;
  const float unit_scale = p.scale / kScoreUnit;
  decay_and_pack<true>(pairs, strip, rate0 * unit_scale, rate8 * unit_scale, s.tokens, a);
  // Decay from the tile's start; computed at each use because of register pressure.
  const auto start = [&](int r) { return exp2_fast(s.tokens.gate(r).x); };
  scale_rows(scores, rate0 * unit_scale * start(row), rate8 * unit_scale * start(row + 8));
  settle(scores);
  settle(a);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kC / 16; ++kk) wgmma_half<1>(scores, a[kk], along_rows_128(base, kWrites, 16 * kk), 1);
  wgmma_commit();
  wgmma_wait<0>();

  // Stage 3: the readout.
  constexpr bool kOnlyScores = kWork == Work::kScores;
  float logits[64];
  float mixed[64];
  uint32_t turned[16][2];
  rotate_and_pack(scores, turn0, turn8, kOnlyScores ? w.slots.first_pair : 0, a, turned);
  settle(a);
  if (kOnlyScores || w.scores != nullptr) {
    constexpr int kPitch = kOnlyScores ? 2 * kM : kM;
    float* rates = w.rate[1] + h * p.T + token;
    if (lane % 4 == 0 && row < tokens) rates[row] = rate0;
    if (lane % 4 == 0 && row + 8 < tokens) rates[row + 8] = rate8;
    __half* to = w.scores + (static_cast<int64_t>(token + row) * p.H + h) * kPitch + (kOnlyScores ? p.section * kM : 0) + 8 * (lane % 4);
    const int64_t down = 8 * p.H * kPitch;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const uint4 x = gather_quad(a[i][0], a[i][2], a[i + 1][0], a[i + 1][2]);
      const uint4 y = gather_quad(a[i][1], a[i][3], a[i + 1][1], a[i + 1][3]);
      if (row < tokens) *reinterpret_cast<uint4*>(to + 16 * i) = x;
      if (row + 8 < tokens) *reinterpret_cast<uint4*>(to + down + 16 * i) = y;
    }
  }
  if constexpr (kOnlyScores) {
    __syncwarp();
    if (lane == 0) barrier_arrive(&s.tokens_empty);
    return;
  }
  settle(a);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kM / 16; ++kk) wgmma_half<0>(logits, a[kk], along_columns_128(base, kTable, 16 * kk), kk > 0);
  wgmma_commit();
  wgmma_wait<0>();
  float sum0, sum8;
  softmax_and_pack<kWork == Work::kAllSlots>(logits, kScoreUnit * unit, p.M - 1, sum0, sum8, a);
  settle(a);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kM / 16; ++kk) wgmma_half<1>(mixed, a[kk], along_rows_128(base, kTable, 16 * kk), kk > 0);
  wgmma_commit();
  wgmma_wait<0>();
  uint32_t started[8][4];
  unrotate_and_pack(mixed, turned, __fdividef(unit, sum0), __fdividef(unit, sum8), start(row), start(row + 8), a, started);

  // Stages 4 and 5: the outputs, 128 columns at a time (64 if there are no more).
  constexpr int kState = Ring::kState;
  constexpr int kValues = Ring::kValues;
  constexpr int kPanels = Ring::kValuePanels;
  constexpr int kWidth = kPanels * kPanelColumns;
  constexpr int kSpans = kPanels == 4 ? 2 : 1;
  float o[kSpans][kPanels == 1 ? 32 : 64];
  float between[64];
  settle(a);
  settle(started);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kM / 16; ++kk) wgmma_half<0>(between, a[kk], along_columns_128(base, kWrites, 16 * kk), kk > 0);
  wgmma_commit();
  wait(kState);
  if constexpr (kPanels > 1) wait(kState + 1);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kM / 16; ++kk) wgmma<1>(o[0], started[kk], along_rows_128(base, place(kState), 16 * kk), kk > 0);
  wgmma_commit();
  wgmma_wait<1>();
  decay_and_pack<false>(between, strip, 1.0F, 1.0F, s.tokens, a);
  settle(a);
  __syncwarp();
  if (lane == 0) barrier_arrive(&s.tokens_empty);
  if constexpr (kSpans == 2) {
    wait(kState + 2);
    wait(kState + 3);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma<1>(o[1], started[kk], along_rows_128(base, place(kState + 2), 16 * kk), kk > 0);
    wgmma_commit();
  }
#pragma unroll
  for (int i = 0; i < kPanels; ++i) wait(kValues + i);
  if (tokens < kC) {
    // Rows past the tile's end hold another sequence's values. Their weights are zero, but 0 * inf is NaN, so they are cleared. Both
    // warpgroups synchronise first: they must have read the queries that these buffers held.
    named_barrier(3, 256);
    for (int i = tokens * (kWidth / 8) + threadIdx.x % 128; i < kC * (kWidth / 8); i += 128) {
      *reinterpret_cast<uint4*>(place_of<Ring>(s, kValues) + piece_offset(kC, i / (kWidth / 8), i % (kWidth / 8))) = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    named_barrier(3, 256);
  }
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < kC / 16; ++kk) wgmma<1>(o[0], a[kk], along_rows_128(base, place(kValues), 16 * kk), 1);
  wgmma_commit();
  if constexpr (kSpans == 2) {
#pragma unroll
    for (int kk = 0; kk < kC / 16; ++kk) wgmma<1>(o[1], a[kk], along_rows_128(base, place(kValues + 2), 16 * kk), 1);
    wgmma_commit();
  }
  wgmma_wait<kSpans - 1>();
#pragma unroll
  for (int i = 0; i < kPanels + (kPanels == 1 ? 1 : 2); ++i) release<Ring>(s, kState + i);
  bf16* to = static_cast<bf16*>(p.o) + (static_cast<int64_t>(token + strip) * p.H + h) * kWidth;
  const int stride = p.H * kWidth;
  store_rows(o[0], to, stride, tokens - strip);
  if constexpr (kSpans == 2) {
    wgmma_wait<0>();
    release<Ring>(s, kValues + 2);
    release<Ring>(s, kValues + 3);
    store_rows(o[1], to + 128, stride, tokens - strip);
  }
}

template <typename Ring>
__global__ void __launch_bounds__(kThreads, 1) cyclic_flow_forward_outputs_sm90(const __grid_constant__ OutputsParams params) {
  extern __shared__ __align__(1024) char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  const Sm90ForwardParams& p = params.p;
  const Workspace& w = params.w;
  if (threadIdx.x < Ring::kKeyPanels * kPanelColumns) s.weight[threadIdx.x] = w.weight[threadIdx.x];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kPlaces; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kConsumerWarps);
    }
    barrier_init(&s.tokens_full, kFeeders);
    barrier_init(&s.tokens_empty, kConsumerWarps);
    barrier_init(&s.table_full, 1);
    fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    const Share share(p);
    if (threadIdx.x == 0) {
      feed_copies<Ring>(params, s, share);
    } else if (threadIdx.x >= 32) {
      feed_tokens<true>(p, w, s, share);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    const Share share(p);
    const float unit = w.table_unit[share.h];
    if (Ring::kWork != Work::kScores) barrier_wait(&s.table_full, 0);
    const int strip = static_cast<int>(__shfl_sync(0xFFFFFFFF, 16 * (threadIdx.x / 32 - 4), 0));
    int parity = 0;
    for (int t = share.last; t >= 0; t -= share.step, parity ^= 1) outputs_of_half<Ring>(p, w, s, strip, share.h, parity, unit);
  }
}

template <typename Ring>
cudaError_t launch(const OutputsParams& params, cudaStream_t stream) {
  const auto kernel = &cyclic_flow_forward_outputs_sm90<Ring>;
  int blocks = 1;
  cudaError_t status = blocks_of_head(params.p, blocks);
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  }
  if (status != cudaSuccess) return status;
  kernel<<<blocks * params.p.H, kThreads, sizeof(Shared), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t sm90_forward_outputs(const Sm90ForwardParams& p, cudaStream_t stream) {
  if (p.tiles == 0) return cudaSuccess;
  const Workspace w = workspace_of(p);
  OutputsParams params = {p, w, {}, {}, {}, {}, {}};
  const int64_t H = p.H;
  cudaError_t status = make_tensor_map(params.q, p.q, p.T, H * p.K, p.q_stride, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.k, p.k, p.T, H * p.K, p.k_stride, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.v, p.v, p.T, H * p.V, p.v_stride, kC);
  if (status == cudaSuccess)
    status = make_tensor_map(params.states, w.states, (p.tiles * H * 2 + 1) * kM, state_width(p), state_width(p), kM);
  if (status == cudaSuccess) status = make_tensor_map(params.table, w.table, static_cast<int64_t>(p.H) * kM, kM, kM, kM);
  if (status != cudaSuccess) return status;
  if (p.M > kM) return launch<Ring<Work::kScores, 4, 4>>(params, stream);
  return with_panel_count(p.K / kPanelColumns, [&](auto keys) {
    return with_panel_count(p.V / kPanelColumns, [&](auto values) {
      constexpr int kKeys = decltype(keys)::value;
      constexpr int kValues = decltype(values)::value;
      if (p.M == kM) return launch<Ring<Work::kAllSlots, kKeys, kValues>>(params, stream);
      return launch<Ring<Work::kFewerSlots, kKeys, kValues>>(params, stream);
    });
  });
}

}  // namespace cyfa::cyclic_flow
