// Shared by all launches of the Hopper backward: the workspace and its layout, and device functions between matrix products. In the
// tile-wise launches two warpgroups own 64 tokens each; a thread owns rows `row` and `row + 8` of the tile and, of every 8 columns, columns
// 2 q and 2 q + 1 with q = lane % 4 (sm90/wgmma.cuh).
#pragma once

#include <cuda_runtime.h>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward.h"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_parts.cuh"
#include "cyfa/kernels/sm90/wgmma.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {

using namespace sm90;
using cyclic_flow::gate_between;

constexpr int kThreads = 256;  // two warpgroups
constexpr int kWarps = kThreads / 32;
constexpr int kWide = kC * kD * 2;   // bytes of a tile of keys, queries or values, and of a state
constexpr int kReadoutBlocks = 132;  // thread blocks of the readout; each accumulates its own dA
constexpr int kWholeParts = 16;      // partial sums per state: 16 slots and 128 columns each

enum Pass { kKeys = 0, kValues = 1 };

// Per-token scalars are [H, T]. With rq = scale / rms(q) and rk = 1 / rms(k) (scale and 1 without norms) and `weight` the product of both
// norm weights, the kernels use q and k as given:
//   W~ = rk W      dY~ = rq dY      S_K = stored state * k's weight      dS_K = stored gradient * q's weight
struct Workspace {
  // Kept by forward (sm90_parts.cuh).
  const float2* gate;
  const uint32_t* turn;
  const float* rate[2];  // 1 / rms of k and of q
  const bf16* states;    // S at tile starts, slots x columns; state_row() gives a state's first row
  const __half* scores;  // [T, H, P] Z / kScoreUnit
  const __half* table;
  const float* table_unit;
  const float* weight;  // [K] product of the norm weights
  // Per-token scalars, one array per pass (Pass).
  float* read[2];      // <the state's part of the output, its gradient>: for the gates from the tile's start to the token
  float* later[2];     // pairs (token, earlier token) within the tile, summed over the earlier one
  float* earlier[2];   // pairs (later token, token) within the tile, summed over the later one
  float* written[2];   // <the token's write, gradient of the tile's end state>: for the gates after the token
  float* beta[2];      // <phi, dW>
  float* turned[3];    // X(W, dW) of both passes; X(Y, dY) - X(U, dU)
  float* crossing[2];  // the part of X(W, dW) that comes from the gradient of the tile's end state
  float* along;        // <Y, dY> = <Q, dQ>
  float2* whole;       // [tiles, H, 2, kWholeParts] partial sums of <S, dS'> and of X(S, dS') / (2 pi / m)
  bf16* d_scores;      // [T, H, 2 kM] dY~ in the first half of each row; aliases d_k if K = 2 kM
  bf16* weights;       // U, the second half of the same rows
  bf16* spare;         // [N, H, 2, kM, state_width] dS' at the end of a sequence's last tile if that is not full
  float* carried;      // dS' at the starts of segments; only if a sequence is split
  float4* d_tables;    // [table blocks, H, quarters, kM * kM / 4] in accumulator register order
  float* d_units;      // [tiles, H, 2] divisors of dX and dL per half tile; only with two sections
  float* row_units;    // [H, T] divisors of the rows of dX; only with two sections
  float* d_weights;    // [weight_rows, K] sums of q dq without weights; with normalise_first [2, weight_rows, K] of k and of q
  bf16* rows[2];       // [T, H, K] normalised k and q, only with normalise_first
  int64_t bytes;
  Slots slots;
};

inline int readout_blocks_of_head(const Sm90BackwardParams& p) {
  const int most = kReadoutBlocks / p.in.H > 0 ? kReadoutBlocks / p.in.H : 1;
  return p.in.tiles < most ? p.in.tiles : most;
}

// Thread blocks that sum each quarter [kM, kM] of the table's gradient. With one section there is one quarter, the whole table.
inline int quarters_of_table(const Sm90BackwardParams& p) { return p.in.M > kM ? 4 : 1; }
inline int table_blocks(const Sm90BackwardParams& p) {
  const int blocks = readout_blocks_of_head(p) / quarters_of_table(p);
  return blocks > 0 ? blocks : 1;
}

// Number of partial sums for the gradients of the norm weights: one per warp of the key pass.
inline int64_t weight_rows(const Sm90BackwardParams& p) { return static_cast<int64_t>(readout_blocks_of_head(p)) * p.in.H * kWarps; }

// Whether some tile has fewer than kC tokens.
inline bool has_short_tiles(const Sm90BackwardParams& p) { return static_cast<int64_t>(p.in.tiles) * kC != p.in.T; }

inline Workspace workspace_of(const Sm90BackwardParams& p) {
  char* base = static_cast<char*>(p.workspace);
  int64_t at = 0;
  const auto take = [&](auto*& part, int64_t count) {
    part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(base + at);
    at += align_up(count * static_cast<int64_t>(sizeof(*part)));
  };
  const int64_t tokens = p.in.T * p.in.H;
  const int64_t tiles = static_cast<int64_t>(p.in.tiles) * p.in.H;
  const cyclic_flow::Workspace forward = cyclic_flow::workspace_of(p.in);
  Workspace w;
  w.gate = forward.gate;
  w.turn = forward.turn;
  w.rate[0] = forward.rate[0];
  w.rate[1] = forward.rate[1];
  w.states = forward.states;
  w.scores = forward.scores;
  w.table = forward.table;
  w.table_unit = forward.table_unit;
  w.weight = forward.weight;
  w.slots = forward.slots;
  for (int i = 0; i < 2; ++i) {
    take(w.read[i], tokens);
    take(w.later[i], tokens);
    take(w.earlier[i], tokens);
    take(w.written[i], tokens);
    take(w.beta[i], tokens);
    take(w.crossing[i], tokens);
  }
  for (int i = 0; i < 3; ++i) take(w.turned[i], tokens);
  take(w.along, tokens);
  take(w.whole, tiles * 2 * kWholeParts);
  take(w.spare, has_short_tiles(p) ? static_cast<int64_t>(p.in.N) * p.in.H * 2 * kM * state_width(p.in) : 0);
  take(w.carried, has_segments(p.in) ? static_cast<int64_t>(segment_places(p.in)) * p.in.H * 2 * kM * state_width(p.in) : 0);
  take(w.d_scores, p.in.K < 2 * kM ? tokens * 2 * kM : 0);
  take(w.d_tables, static_cast<int64_t>(table_blocks(p)) * p.in.H * quarters_of_table(p) * kM * kM / 4);
  take(w.d_units, p.in.M > kM ? 2 * tiles : 0);
  take(w.row_units, p.in.M > kM ? tokens : 0);
  take(w.d_weights, (normalises_first(p.in) ? 2 : 1) * weight_rows(p) * p.in.K);
  for (bf16*& rows : w.rows) take(rows, normalises_first(p.in) && p.in.section == 0 ? tokens * p.in.K : 0);
  if (p.in.K == 2 * kM) w.d_scores = static_cast<bf16*>(p.d_k);
  w.weights = w.d_scores + kM;
  w.bytes = at;
  return w;
}

// Parameters for one of two sections. The first uses the caller's gradients and the start of the workspace. The second has its own
// workspace after it, followed by its own gradients of q, k and v, which backward_join adds to the first's.
inline int64_t room_of_gradient(const Sm90BackwardParams& p) { return align_up(p.in.T * p.in.H * kD * 2); }
inline Sm90BackwardParams section_of(const Sm90BackwardParams& p, int section) {
  Sm90BackwardParams r = p;
  r.in.section = section;
  if (section == 0) return r;
  const int64_t bytes = workspace_of(p).bytes;
  char* after = static_cast<char*>(p.workspace) + 2 * bytes;
  r.workspace = static_cast<char*>(p.workspace) + bytes;
  r.d_q = after;
  r.d_k = after + room_of_gradient(p);
  r.d_v = after + 2 * room_of_gradient(p);
  return r;
}

// Location of dS' at the end of a tile, slots x columns: in the tile's own rows of d_q (keys) or d_v (values), which have the same size, or
// in `spare` for a short tile. `stride` is the distance between slots.
struct StatePlace {
  bf16* at;
  int64_t stride;
};
inline __device__ StatePlace d_state_at(const Sm90BackwardParams& p, const Workspace& w, const Tile& tile, int h, int pass) {
  const int64_t H = p.in.H;
  if (tile.tokens < kC) return {w.spare + ((tile.sequence * H + h) * 2 + pass) * kM * state_width(p.in), state_width(p.in)};
  const int width = pass == kKeys ? p.in.K : p.in.V;
  return {static_cast<bf16*>(pass == kKeys ? p.d_q : p.d_v) + (tile.token * H + h) * width, H * width};
}

// Operand descriptors for tiles of 128 rows, at a constant byte distance from a shared memory address / 16: along_columns and along_rows of
// sm90/tile.cuh as one addition.
__device__ __forceinline__ uint64_t operand(uint32_t place, int distance, int leading) {
  return static_cast<uint64_t>(1U << 30 | 1024 >> 4) << 32 | (place + static_cast<uint32_t>(distance >> 4 | leading >> 4 << 16));
}
__device__ __forceinline__ uint64_t columns_of(uint32_t place, int distance, int column) {
  return operand(place, distance + (column >> 6) * kC * kRowBytes + (column & 63) * 2, 16);
}
__device__ __forceinline__ uint64_t rows_of(uint32_t place, int distance, int row) {
  return operand(place, distance + row * kRowBytes, kC * kRowBytes);
}

// The launches in order. Each enqueues on the stream and returns cudaGetLastError().
cudaError_t backward_readout(const Sm90BackwardParams& p, cudaStream_t stream);
cudaError_t backward_states(const Sm90BackwardParams& p, cudaStream_t stream);
cudaError_t backward_through(const Sm90BackwardParams& p, cudaStream_t stream);
cudaError_t backward_passes(const Sm90BackwardParams& p, cudaStream_t stream);
cudaError_t backward_norms(const Sm90BackwardParams& p, cudaStream_t stream);
cudaError_t backward_sums(const Sm90BackwardParams& p, cudaStream_t stream);
// With two sections: instead of backward_readout, and after the passes.
cudaError_t backward_readout_of_sections(const Sm90BackwardParams (&sections)[2], cudaStream_t stream);
cudaError_t backward_join(const Sm90BackwardParams (&sections)[2], cudaStream_t stream);

// 2^x in one instruction; 0 at minus infinity.
__device__ __forceinline__ float power_of_2(float x) { return exp2_fast(x); }

__device__ __forceinline__ void phase(uint32_t turn, int j, float& sine, float& cosine) {
  __sincosf(static_cast<float>(static_cast<int32_t>(turn * static_cast<uint32_t>(j))) * kRadians, &sine, &cosine);
}

// Returns x as a value opaque to the compiler, so that dependent values are recomputed instead of kept in registers.
template <typename T>
__device__ __forceinline__ T anew(T x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFF, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFF, x, 2);
}

template <int N>
__device__ __forceinline__ void scale_rows(float (&d)[N], float a0, float a8) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    d[i] *= a0;
    d[i + 1] *= a0;
    d[i + 2] *= a8;
    d[i + 3] *= a8;
  }
}

__device__ __forceinline__ void pack_rows(const float (&d)[64], uint32_t (&a)[8][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    a[i / 2][i % 2 * 2] = pack_here(d[4 * i], d[4 * i + 1]);
    a[i / 2][i % 2 * 2 + 1] = pack_here(d[4 * i + 2], d[4 * i + 3]);
  }
}

__device__ __forceinline__ uint32_t load_shared(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
