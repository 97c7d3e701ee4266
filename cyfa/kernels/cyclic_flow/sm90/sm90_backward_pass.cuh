// Shared by the two gated passes of the Hopper backward (docs/operator.md, "Chunks"). With (x, y, z, dS') = (V, dO, U, dS_V') in the value
// pass and (k w, q, dY~, dS_K') in the key pass, f = beta and beta rk, rows s, columns t >= s, and D_st the decay from s to t:
//   dphi = (D * (x y^T)) z + b (x dS'^T)          dx = f (D * (phi z^T)) y + f b (phi dS')
// Of dphi only <phi, dphi> and X(phi, dphi) = <psi, dphi> 2 pi / m are needed. The contributions of pairs are sums of (x y^T) * (phi z^T)
// and of (x y^T) * (psi z^T), so only the state's part of dphi is materialised. The gates need the products of pairs, summed along rows and
// columns, and the contributions of the states.
//
// A persistent block stays with one head and takes every (gridDim.x / H)-th tile. Warp roles: thread 0 issues TMA copies, warps 1 to 3
// prepare the tokens' decays (token warps), warpgroups 1 and 2 own 64 tokens of the tile each. Shared memory, 227 KB: 14 buffers of one
// panel, [128 rows, 64 columns], and per-token values. Narrower heads have fewer panels, in the same buffers.
#pragma once

#include <cstddef>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_device.cuh"
#include "cyfa/kernels/sm90/launch.cuh"
#include "cyfa/kernels/sm90/tma.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {

cudaError_t backward_values(const Sm90BackwardParams& p, cudaStream_t stream);
cudaError_t backward_keys(const Sm90BackwardParams& p, cudaStream_t stream);

constexpr int kPassThreads = 384;
constexpr int kFeeders = 96;  // threads of the token warps
constexpr int kPanelBytes = kC * kRowBytes;
constexpr int kPlaces = 14;
constexpr int kX = 0, kY = 4, kS = 8, kZ = 12;  // first buffers of x, y, dS', z: up to four panels each, two for z
constexpr int kHalfRows = 64 * kRowBytes >> 4;  // descriptor offset of the tile's second half
constexpr int kBlock = 16;                      // tokens whose decays share one origin

struct PassParams {
  Sm90BackwardParams p;
  Workspace w;
  CUtensorMap x, y, z, d_states, spare, states;
  CUtensorMap out;  // d_v or d_q, boxes of 16 rows
};

// Cumulative gates (log2) of a tile; rows past its end repeat its last token. Within a block of kBlock tokens one float suffices: its sums
// are small, or the decay is 0.
struct Tokens {
  float2 first[kC / kBlock];  // from the tile's start to the first token of a block, as high and low part
  float fall[kC];             // from there to the token
  float rise[kC];             // 2^fall

  __device__ __forceinline__ float between_blocks(int later, int earlier) const {
    const float2 x = first[later / kBlock];
    const float2 y = first[earlier / kBlock];
    return (x.x - y.x) + (x.y - y.y);
  }
  // Decay from a token to the tile's end.
  __device__ __forceinline__ float to_end(int row) const {
    return power_of_2(fminf(between_blocks(kC - 1, row) + (fall[kC - 1] - fall[row]), 0.0F));
  }
};

// A consumer warp's current tile, in shared memory because of register pressure.
struct TilePlace {
  int token, tokens, h, n;  // n counts the block's tiles
};

struct PassShared {
  char ring[kPlaces * kPanelBytes];
  Tokens tokens;
  float weight[kD];  // product of both norm weights
  TilePlace place[kWarps];
  uint64_t full[kPlaces], empty[kPlaces];
  uint64_t tokens_full, tokens_empty, columns_full;
};
static_assert(sizeof(PassShared) <= 227 * 1024);

// The thread block's head and tiles. Constructed where needed: a value that is live across the role split is spilled to local memory.
struct Share {
  int h, first, step;

  __device__ __forceinline__ explicit Share(const Sm90BackwardParams& p) {
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const int H = anew(p.in.H);
    h = block % H;
    first = block / H;
    step = static_cast<int>(gridDim.x) / H;
  }
  // The block's n-th tile; tokens = 0 if there is none.
  __device__ __forceinline__ void tile(const Sm90BackwardParams& p, int n, int& token, int& tokens) const {
    const int t = first + n * step;
    token = t < p.in.tiles ? static_cast<int>(p.in.tile[t].token) : 0;
    tokens = t < p.in.tiles ? p.in.tile[t].tokens : 0;
  }
};

// Copies a panel into a buffer once the buffer's previous use, with the given parity, is over.
__device__ __forceinline__ void feed_panel(PassShared& s, int place, int last_use, const CUtensorMap* map, int column, int row) {
  barrier_wait(&s.empty[place], last_use);
  barrier_expect(&s.full[place], kPanelBytes);
  copy_box(shared_address(s.ring + place * kPanelBytes), map, column, row, &s.full[place]);
}
template <int kPanels>
__device__ __forceinline__ void feed_d_state(const PassParams& params, PassShared& s, int t, int h, int pass, int panel, int last_use) {
  const Tile& tile = params.p.in.tile[t];
  if (tile.tokens == kC) {
    feed_panel(s, kS + panel, last_use, &params.d_states, (h * kPanels + panel) * kPanelColumns, static_cast<int>(tile.token));
  } else {
    feed_panel(s, kS + panel, last_use, &params.spare, panel * kPanelColumns, ((tile.sequence * params.p.in.H + h) * 2 + pass) * kM);
  }
}

// Cumulative gates of a tile's tokens, by the token warps.
__device__ __forceinline__ void feed_tokens(const Workspace& w, PassShared& s, int64_t base, int tokens, int last_use) {
  barrier_wait(&s.tokens_empty, last_use);
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) - 32; row < kC; row += kFeeders) {
    const float2 gate = w.gate[base + min(row, tokens - 1)];
    const float2 first = w.gate[base + min(row / kBlock * kBlock, tokens - 1)];
    const float fall = (gate.x - first.x) + (gate.y - first.y);
    s.tokens.fall[row] = fall;
    s.tokens.rise[row] = power_of_2(fall);
    if (row % kBlock == 0) s.tokens.first[row / kBlock] = first;
  }
  barrier_arrive(&s.tokens_full);
}

// Reduces eight values over the eight lanes with equal lane % 4; lane l receives the sum of value l / 4.
__device__ __forceinline__ float sum_lanes(const float (&x)[8]) {
  const int lane = threadIdx.x % 32;
  float y[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) y[i] = ((lane & 16) ? x[i + 4] : x[i]) + __shfl_xor_sync(0xFFFFFFFF, (lane & 16) ? x[i] : x[i + 4], 16);
#pragma unroll
  for (int i = 0; i < 2; ++i) y[i] = ((lane & 8) ? y[i + 2] : y[i]) + __shfl_xor_sync(0xFFFFFFFF, (lane & 8) ? y[i] : y[i + 2], 8);
  return ((lane & 4) ? y[1] : y[0]) + __shfl_xor_sync(0xFFFFFFFF, (lane & 4) ? y[0] : y[1], 4);
}
// The column, of 32, of the sum that a lane received, if value 2 b + c is column 8 b + 2 (lane % 4) + c.
__device__ __forceinline__ int column_of_lane() {
  const int lane = threadIdx.x % 32;
  return 8 * (lane / 8) + 2 * (lane % 4) + lane / 4 % 2;
}

// Adds the warps' column sums for column t. Each of the tile's eight strips of 16 rows has 128 sums, `distance` apart: 64 columns of its
// own half, then 64 of the later half.
__device__ __forceinline__ float sum_columns(const float* at, int distance, int t) {
  float sum = 0.0F;
  for (int strip = 0; strip < 4; ++strip) sum += at[strip * distance + t];
  if (t >= 64) {
    for (int strip = 4; strip < 8; ++strip) sum += at[strip * distance + t - 64];
  }
  return sum;
}

// A warp's 16 rows of a panel: load as A operand, and store.
__device__ __forceinline__ uint32_t piece_of_strip(uint32_t panel, int strip, int kk) {
  const int lane = threadIdx.x % 32;
  return panel + (16 * strip + lane % 16) * kRowBytes + (((2 * kk + lane / 16) ^ (lane & 7)) << 4);
}
__device__ __forceinline__ void load_strip(uint32_t (&a)[4][4], uint32_t panel, int strip) {
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) load_blocks(a[kk], piece_of_strip(panel, strip, kk));
}
__device__ __forceinline__ void put_strip(const uint32_t (&a)[4][4], uint32_t panel, int strip) {
#pragma unroll
  for (int kk = 0; kk < 4; ++kk) store_blocks(piece_of_strip(panel, strip, kk), a[kk][0], a[kk][1], a[kk][2], a[kk][3]);
}

__device__ __forceinline__ void init_barriers(PassShared& s, int released_by_feeders) {
  for (int i = 0; i < kPlaces; ++i) {
    barrier_init(&s.full[i], 1);
    barrier_init(&s.empty[i], i == released_by_feeders ? kFeeders : kWarps);
  }
  barrier_init(&s.tokens_full, kFeeders);
  barrier_init(&s.tokens_empty, kWarps);
  barrier_init(&s.columns_full, kWarps * 32);
  fence_barrier_init();
}

// Launches one pass. The key pass needs no results of the value pass, so it uses programmatic dependent launch: its blocks start as blocks
// of the value pass, which do not all have the same number of tiles, finish.
inline cudaError_t launch_pass(void (*kernel)(PassParams), const Sm90BackwardParams& p, Pass pass, cudaStream_t stream) {
  PassParams params = {p, workspace_of(p), {}, {}, {}, {}, {}, {}, {}};
  const Sm90ForwardParams& in = p.in;
  const bool keys = pass == kKeys;
  const int64_t width = static_cast<int64_t>(in.H) * (keys ? in.K : in.V);
  const int64_t width_of_z = static_cast<int64_t>(in.H) * 2 * kM;
  const int state = state_width(in);
  cudaError_t status = make_tensor_map(params.x, keys ? in.k : in.v, in.T, width, keys ? in.k_stride : in.v_stride, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.y, keys ? in.q : p.grad_o, in.T, width, keys ? in.q_stride : width, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.z, params.w.d_scores, in.T, width_of_z, width_of_z, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.d_states, keys ? p.d_q : p.d_v, in.T, width, width, kC);
  if (status == cudaSuccess) status = make_tensor_map(params.out, keys ? p.d_q : p.d_v, in.T, width, width, 16);
  params.spare = params.d_states;
  if (status == cudaSuccess && has_short_tiles(p)) {
    status = make_tensor_map(params.spare, params.w.spare, static_cast<int64_t>(in.N) * in.H * 2 * kM, state, state, kM);
  }
  if (status == cudaSuccess) {
    status = make_tensor_map(params.states, params.w.states, (static_cast<int64_t>(in.tiles) * in.H * 2 + 1) * kM, state, state, kM);
  }
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(PassShared)));
  }
  if (status != cudaSuccess) return status;
  const int blocks = readout_blocks_of_head(p) * in.H;
  if (keys) return launch_early(kernel, blocks, kPassThreads, sizeof(PassShared), stream, params);
  kernel<<<blocks, kPassThreads, sizeof(PassShared), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
