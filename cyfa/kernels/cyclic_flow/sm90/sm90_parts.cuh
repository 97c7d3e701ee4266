// Shared by all Hopper launches of cyclic_flow: sizes, the workspace and its layout, the segments of long sequences, write vectors and
// epilogue stores. Included by every forward and backward file in this folder.
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_forward.h"
#include "cyfa/kernels/sm90/wgmma.cuh"

namespace cyfa::cyclic_flow {

using sm90::bf16;

constexpr int kC = kTileTokens;  // tokens per tile
// Slots per section: the number of slots that one launch handles. If there are fewer, the readout table is zero-padded. State rows of
// padding slots are computed like the others, but nothing reads them.
constexpr int kM = kSectionSlots;
constexpr int kLeastSlots = 64;                     // a smaller M would take as long as 128
constexpr int kD = 256;                             // largest K and V; narrower heads have one or two panels of 64 columns
constexpr float kRadians = 1.4629180792671596e-9F;  // 2 pi / 2^32

// The state scan of a sequence with more than kWalkTiles tiles is split into segments of kSegmentTiles, so that a few long sequences fill
// the GPU. The split depends only on the sequence's own length, so its results are bitwise the same in any batch.
constexpr int kWalkTiles = 64;
constexpr int kSegmentTiles = 16;
// Sequences with more tiles than this get their per-tile sums of delta from a separate launch.
constexpr int kSumTiles = 64;

// Constants of a launch that follow from M and the section.
struct Slots {
  int first_pair;  // frequency of the section's first coordinate pair
  float first;     // the same as a float
  float constant;  // scale of a write vector's DC coordinate, sqrt(1/m)
  float paired;    // scale of its cosines and sines, sqrt(2/m)
  float turn;      // 2 pi / m
};

__host__ __device__ inline Slots slots_of(const Sm90ForwardParams& p) {
  const float m = static_cast<float>(p.M - 1);
  const int first = p.section * (kM / 2);
  return {first, static_cast<float>(first), 1.0F / sqrtf(m), sqrtf(2.0F / m), 6.283185307179586F / m};
}

struct Workspace {
  // Kept for backward (Sm90Kept).
  float2* gate;    // [H, T] inclusive sum of log2(alpha) from the tile's start, as high and low part
  uint32_t* turn;  // [H, T] clock modulo m in units of m / 2^32: a 32-bit product with j wraps as the angle does
  float* rate[2];  // [H, T] 1 / rms of k and of q; 1 without a norm
  // This section's states at tile starts, [tiles, H, 2, kM, state_width], slots x columns; the key state lacks the norm weight of k.
  // Followed by one zero state, [kM, state_width], which stands for tiles that start from zero: their states are not stored.
  bf16* states;
  __half* table;      // [H, P, P] readout table R Phi, divided by table_unit
  float* table_unit;  // [H] power of two that brings the table into the range of half precision
  float* weight;      // [K] product of the norm weights of q and k
  __half* scores;     // [T, H, P] rotated scores Z / kScoreUnit
  // Scratch.
  double* advance;  // [H, tiles] sum of delta over each tile
  float* carried;   // [segments, H, 2, kM * state_width] state at the end of all but the last segment; only if a sequence is split
  bf16* rows[2];    // [T, H, K] normalised k and q, only with normalise_first
  __half* weights;  // [T, H, P] U, only with two sections; holds the scores first if these are not kept
  int64_t bytes;
  Slots slots;
};

constexpr float kScoreUnit = 64.0F;  // keeps scores within half precision, whose largest number is 65,504

__host__ __device__ inline int64_t align_up(int64_t x) { return (x + 1023) / 1024 * 1024; }

__host__ __device__ inline int longest_of(const Sm90ForwardParams& p) { return p.longest > 0 ? p.longest : p.tiles; }
__host__ __device__ inline bool has_segments(const Sm90ForwardParams& p) { return longest_of(p) > kWalkTiles; }
__host__ __device__ inline int segments_of(int tiles) { return tiles <= kWalkTiles ? 1 : (tiles + kSegmentTiles - 1) / kSegmentTiles; }
// Index of the first segment of sequence n, whose first tile is `first`; its other segments follow. If any sequence is split, some indices
// belong to no segment.
__host__ __device__ inline int first_place(const Sm90ForwardParams& p, int n, int first) {
  return has_segments(p) ? first / kSegmentTiles + n : n;
}
__host__ __device__ inline int segment_places(const Sm90ForwardParams& p) { return first_place(p, p.N, p.tiles); }

// Row pitch of stored states in columns, the same for keys and values.
__host__ __device__ inline int state_width(const Sm90ForwardParams& p) { return p.K > p.V ? p.K : p.V; }

__host__ __device__ inline bool normalises_first(const Sm90ForwardParams& p) {
  return (p.normalise_first || p.initial_k != nullptr) && (p.q_norm_weight != nullptr || p.k_norm_weight != nullptr);
}

__host__ __device__ inline Workspace workspace_of(const Sm90ForwardParams& p) {
  char* base = static_cast<char*>(p.workspace);
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    char* here = base + at;
    at += align_up(bytes);
    return here;
  };
  const int64_t units = p.T * p.H;
  Workspace w;
  w.gate = static_cast<float2*>(p.kept.tokens);
  w.turn = reinterpret_cast<uint32_t*>(w.gate + units);
  w.rate[0] = reinterpret_cast<float*>(w.turn + units);
  w.rate[1] = w.rate[0] + units;
  w.states = static_cast<bf16*>(p.kept.states) + p.section * (static_cast<int64_t>(p.tiles) * p.H * 2 + 1) * kM * state_width(p);
  w.table = static_cast<__half*>(p.kept.tables);
  w.table_unit = reinterpret_cast<float*>(w.table + p.H * sm90_filled_slots(p.M) * sm90_filled_slots(p.M));
  w.weight = w.table_unit + p.H;
  w.scores = static_cast<__half*>(p.kept.scores);
  w.advance = reinterpret_cast<double*>(take(static_cast<int64_t>(p.tiles) * p.H * 8));
  w.carried =
      reinterpret_cast<float*>(take(has_segments(p) ? static_cast<int64_t>(segment_places(p)) * p.H * 2 * kM * state_width(p) * 4 : 0));
  w.weights = reinterpret_cast<__half*>(take(p.M > kM ? units * sm90_filled_slots(p.M) * 2 : 0));
  // Must be last: parameters from with_normalised_rows() have no norm weights, so workspace_of() cannot tell that these rows exist.
  for (bf16*& rows : w.rows) rows = reinterpret_cast<bf16*>(take(normalises_first(p) ? units * p.K * 2 : 0));
  if (p.M > kM && w.scores == nullptr) w.scores = w.weights;
  w.bytes = at;
  w.slots = slots_of(p);
  return w;
}

// First row of a tile's state within `states`; the zero state for the first tile of a sequence without initial state.
__device__ __forceinline__ int state_row(const Sm90ForwardParams& p, int tile, int h, int which) {
  const bool blank = p.initial_k == nullptr && p.initial_v == nullptr && p.first_tile[p.tile[tile].sequence] == tile;
  return blank ? p.tiles * p.H * 2 * kM : ((tile * p.H + h) * 2 + which) * kM;
}

// Whether sequences start from a zero state.
__device__ __forceinline__ bool starts_from_nothing(const Sm90ForwardParams& p) { return p.initial_k == nullptr && p.initial_v == nullptr; }

__device__ __forceinline__ bf16* tile_state(const Workspace& w, const Sm90ForwardParams& p, int tile, int h, int which) {
  return w.states + ((static_cast<int64_t>(tile) * p.H + h) * 2 + which) * kM * state_width(p);
}

__device__ __forceinline__ float* carried_state(const Workspace& w, const Sm90ForwardParams& p, int place, int h, int which) {
  return w.carried + ((static_cast<int64_t>(place) * p.H + h) * 2 + which) * kM * state_width(p);
}

// Offset of the section's first slot in the caller's state [K, M] or [M, V], and the number of the section's slots that exist.
__host__ __device__ inline int64_t given_state(const Sm90ForwardParams& p, int n, int h, bool keys) {
  return (static_cast<int64_t>(n) * p.H + h) * p.M * (keys ? p.K : p.V) + p.section * kM * (keys ? 1 : p.V);
}
__host__ __device__ inline int given_slots(const Sm90ForwardParams& p) { return p.M - p.section * kM < kM ? p.M - p.section * kM : kM; }

// Flushes subnormal results to zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Decay from token `earlier` to token `later`; at most 1 if they are in order.
__device__ __forceinline__ float gate_between(float2 later, float2 earlier) {
  return exp2_fast((later.x - earlier.x) + (later.y - earlier.y));
}

// Slots 8 piece .. 8 piece + 7 of the section of a token's write vector times `factor`, in bf16 or half precision.
template <bool kHalfPrecision = false>
__device__ __forceinline__ uint4 write_piece(uint32_t turn, float factor, int piece, const Slots& slots) {
  uint32_t x[4];
  const float norm = factor * slots.paired;
  const auto phase = [&](uint32_t j, float& sine, float& cosine) {
    __sincosf(static_cast<float>(static_cast<int32_t>(turn * j)) * kRadians, &sine, &cosine);
  };
  // Each frequency's rotation is the previous one's times that of frequency 1.
  float sine, cosine, sine1, cosine1;
  phase(slots.first_pair + 4 * piece, sine, cosine);
  phase(1, sine1, cosine1);
  sine *= norm;
  cosine *= norm;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    x[c] = kHalfPrecision ? sm90::pack_half(cosine, -sine) : sm90::pack(cosine, -sine);
    const float next = cosine * cosine1 - sine * sine1;
    sine = sine * cosine1 + cosine * sine1;
    cosine = next;
  }
  if (slots.first_pair + piece == 0) {
    x[0] = kHalfPrecision ? sm90::pack_half(factor * slots.constant, 0.0F) : sm90::pack(factor * slots.constant, 0.0F);
  }
  return make_uint4(x[0], x[1], x[2], x[3]);
}

// 4 x 4 transpose within a quad. Before: each lane holds two columns of four adjacent 8-column blocks. After: lane q holds all eight
// columns of block q.
__device__ __forceinline__ uint4 gather_quad(uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
  const int q = threadIdx.x % 4;
  uint32_t x = __shfl_xor_sync(0xFFFFFFFF, (q & 1) ? v0 : v1, 1);
  uint32_t y = __shfl_xor_sync(0xFFFFFFFF, (q & 1) ? v2 : v3, 1);
  if (q & 1) {
    v0 = x;
    v2 = y;
  } else {
    v1 = x;
    v3 = y;
  }
  x = __shfl_xor_sync(0xFFFFFFFF, (q & 2) ? v0 : v2, 2);
  y = __shfl_xor_sync(0xFFFFFFFF, (q & 2) ? v1 : v3, 2);
  if (q & 2) {
    v0 = x;
    v1 = y;
  } else {
    v2 = x;
    v3 = y;
  }
  return make_uint4(v0, v1, v2, v3);
}

// Stores a warp's 16 rows of an accumulator with 2N columns as bf16, in full 128-byte lines: half of the lanes exchange their part of a
// line with the other half. `to` is the first row's first column; rows from `rows` on are not stored.
template <int N>
__device__ __forceinline__ void store_rows(const float (&d)[N], bf16* to, int stride, int rows) {
  const int lane = threadIdx.x % 32;
  const bool upper = lane >= 16;
  const int row = lane / 4 % 4;
  to += row * stride + 8 * (lane % 4 + (upper ? 4 : 0));
  const auto store = [&](uint4 x, int at, int column) {
    if (row + at < rows) *reinterpret_cast<uint4*>(to + at * stride + column) = x;
  };
#pragma unroll
  for (int i = 0; i < N / 4; i += 8) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t x[8];
#pragma unroll
      for (int b = 0; b < 8; ++b) x[b] = sm90::pack(d[4 * (i + b) + 2 * half], d[4 * (i + b) + 2 * half + 1]);
      const uint4 left = gather_quad(x[0], x[1], x[2], x[3]);
      const uint4 right = gather_quad(x[4], x[5], x[6], x[7]);
      const auto swap = [&](uint32_t own_left, uint32_t own_right) {
        return __shfl_xor_sync(0xFFFFFFFF, upper ? own_left : own_right, 16);
      };
      const uint4 other = make_uint4(swap(left.x, right.x), swap(left.y, right.y), swap(left.z, right.z), swap(left.w, right.w));
      store(upper ? other : left, 8 * half, 8 * i);
      store(upper ? right : other, 8 * half + 4, 8 * i);
    }
  }
}

// Calls launch(Panels<n>()) with the number of 64-column panels as a compile-time constant.
template <int kCount>
struct Panels {
  static constexpr int value = kCount;
};
template <typename Launch>
cudaError_t with_panel_count(int panels, const Launch& launch) {
  return panels == 1 ? launch(Panels<1>()) : panels == 2 ? launch(Panels<2>()) : launch(Panels<4>());
}

// Writes normalised rows of k and q, and returns the parameters that replace `p` (sm90_norms.cu).
cudaError_t sm90_normalise_rows(const Sm90ForwardParams& p, bf16* k, bf16* q, cudaStream_t stream);
Sm90ForwardParams with_normalised_rows(const Sm90ForwardParams& p, bf16* k, bf16* q);

// The launches in order, each in its own file.
cudaError_t sm90_forward_prepare(const Sm90ForwardParams& p, cudaStream_t stream);
cudaError_t sm90_forward_states(const Sm90ForwardParams& p, cudaStream_t stream);
cudaError_t sm90_forward_outputs(const Sm90ForwardParams& p, cudaStream_t stream);

// With two sections, sm90_forward_outputs stops after the scores of one section; these launches then process both sections
// (sm90_readout.cu, sm90_forward_sections.cu). sm90_readout_again is the backward's version.
cudaError_t sm90_forward_readout(const Sm90ForwardParams& p, cudaStream_t stream);
cudaError_t sm90_readout_again(const Sm90ForwardParams& p, __half* probs, bf16* weights0, bf16* weights1, cudaStream_t stream);
cudaError_t sm90_forward_values(const Sm90ForwardParams& p, cudaStream_t stream);

}  // namespace cyfa::cyclic_flow
