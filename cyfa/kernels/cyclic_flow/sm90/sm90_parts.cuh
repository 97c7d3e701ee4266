// What the launches of the Hopper kernels of cyclic_flow share: sizes, the workspace, the segments of long sequences, and stores.
#pragma once

#include "cyfa/kernels/cyclic_flow/sm90/sm90_forward.h"
#include "cyfa/kernels/sm90/wgmma.cuh"

namespace cyfa::cyclic_flow {

using sm90::bf16;

constexpr int kC = kTileTokens;  // tokens of a tile
// Stored slots of a section: what one launch knows of a state. Where there are fewer, the table has zeros for the rest: their rows of the
// states are like others, but nothing reads them.
constexpr int kM = kSectionSlots;
constexpr int kLeastSlots = 64;                     // fewer would cost as much as 128
constexpr int kD = 256;                             // the widest keys and values; others are one panel of 64 columns or two
constexpr float kRadians = 1.4629180792671596e-9F;  // 2 pi / 2^32

// A walk over a sequence of more than kWalkTiles tiles is cut into segments of kSegmentTiles, so that a few long sequences fill the chip.
// The cut depends on the sequence's own length alone: its results are the same bits in any batch.
constexpr int kWalkTiles = 64;
constexpr int kSegmentTiles = 16;
// Where a sequence has more tiles than this, their sums of delta have a launch of their own.
constexpr int kSumTiles = 64;

// Numbers of a launch that follow from M and its section.
struct Slots {
  int first_pair;  // frequency of the section's first pair
  float first;     // the same
  float constant;  // factor of a write vector's DC
  float paired;    // and of its cosines and sines
  float turn;      // 2 pi / m
};

__host__ __device__ inline Slots slots_of(const Sm90ForwardParams& p) {
  const float m = static_cast<float>(p.M - 1);
  const int first = p.section * (kM / 2);
  return {first, static_cast<float>(first), 1.0F / sqrtf(m), sqrtf(2.0F / m), 6.283185307179586F / m};
}

struct Workspace {
  // Kept for backward.
  float2* gate;       // [H, T] sum of log2(alpha) from the tile's start, as high and low part
  uint32_t* turn;     // [H, T] clock modulo m in units of m / 2^32: a product with j wraps just as the angle does
  float* rate[2];     // [H, T] 1 / rms of each key and of each query, 1 where they have no norm
  bf16* states;       // of the section: [tiles, H, 2, kM, state_width] at the tile's start, slots by columns; keys without their norm's
                      // weight. Then zeros, [kM, state_width], for tiles that start from nothing: theirs are not stored
  __half* table;      // [H, P, P]
  float* table_unit;  // [H] power of two by which the table was divided before it became half precision
  float* weight;      // [K] product of the norm weights of q and k
  __half* scores;     // [T, H, P] after the rotation, divided by kScoreUnit
  // Not kept.
  double* advance;  // [H, tiles] sum of delta over the tile
  float* carried;   // [segments, H, 2, kM * state_width] state at the end of every segment but a sequence's last; only where one is cut
  bf16* rows[2];    // [T, H, K] normalised k and q, only with normalise_first
  __half* weights;  // [T, H, P] U, only with more than one section; where scores are not kept, in their place
  int64_t bytes;
  Slots slots;
};

constexpr float kScoreUnit = 64.0F;  // scores are divided by it before they become half precision, which ends at 65,504

__host__ __device__ inline int64_t align_up(int64_t x) { return (x + 1023) / 1024 * 1024; }

__host__ __device__ inline int longest_of(const Sm90ForwardParams& p) { return p.longest > 0 ? p.longest : p.tiles; }
__host__ __device__ inline bool has_segments(const Sm90ForwardParams& p) { return longest_of(p) > kWalkTiles; }
__host__ __device__ inline int segments_of(int tiles) { return tiles <= kWalkTiles ? 1 : (tiles + kSegmentTiles - 1) / kSegmentTiles; }
// The segments of sequence n, which begins with tile `first`, have places one after another from here on. Where a sequence is cut, places
// of no segment lie between.
__host__ __device__ inline int first_place(const Sm90ForwardParams& p, int n, int first) {
  return has_segments(p) ? first / kSegmentTiles + n : n;
}
__host__ __device__ inline int segment_places(const Sm90ForwardParams& p) { return first_place(p, p.N, p.tiles); }

// Columns between rows of stored states, of keys and of values alike.
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
  // Last: with_normalised_rows() leaves parameters of which one cannot see that there are rows.
  for (bf16*& rows : w.rows) rows = reinterpret_cast<bf16*>(take(normalises_first(p) ? units * p.K * 2 : 0));
  if (p.M > kM && w.scores == nullptr) w.scores = w.weights;
  w.bytes = at;
  w.slots = slots_of(p);
  return w;
}

// First row of a tile's state among the rows of `states`; a sequence's first tile, where it starts from nothing, has the zeros.
__device__ __forceinline__ int state_row(const Sm90ForwardParams& p, int tile, int h, int which) {
  const bool blank = p.initial_k == nullptr && p.initial_v == nullptr && p.first_tile[p.tile[tile].sequence] == tile;
  return blank ? p.tiles * p.H * 2 * kM : ((tile * p.H + h) * 2 + which) * kM;
}

// Whether a sequence starts from zeros.
__device__ __forceinline__ bool starts_from_nothing(const Sm90ForwardParams& p) { return p.initial_k == nullptr && p.initial_v == nullptr; }

__device__ __forceinline__ bf16* tile_state(const Workspace& w, const Sm90ForwardParams& p, int tile, int h, int which) {
  return w.states + ((static_cast<int64_t>(tile) * p.H + h) * 2 + which) * kM * state_width(p);
}

__device__ __forceinline__ float* carried_state(const Workspace& w, const Sm90ForwardParams& p, int place, int h, int which) {
  return w.carried + ((static_cast<int64_t>(place) * p.H + h) * 2 + which) * kM * state_width(p);
}

// Where a head's state [K, M] or [M, V] has the section's first slot, and how many of the section's slots it has.
__host__ __device__ inline int64_t given_state(const Sm90ForwardParams& p, int n, int h, bool keys) {
  return (static_cast<int64_t>(n) * p.H + h) * p.M * (keys ? p.K : p.V) + p.section * kM * (keys ? 1 : p.V);
}
__host__ __device__ inline int given_slots(const Sm90ForwardParams& p) { return p.M - p.section * kM < kM ? p.M - p.section * kM : kM; }

// Results below the smallest normal number are zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The decay between two tokens; never above one where `earlier` is no later than `later`.
__device__ __forceinline__ float gate_between(float2 later, float2 earlier) {
  return exp2_fast((later.x - earlier.x) + (later.y - earlier.y));
}

// Slots 8 piece .. 8 piece + 7 of the section, of a token's write vector times `factor`, as bf16 or in half precision.
template <bool kHalfPrecision = false>
__device__ __forceinline__ uint4 write_piece(uint32_t turn, float factor, int piece, const Slots& slots) {
  uint32_t x[4];
  const float norm = factor * slots.paired;
  const auto phase = [&](uint32_t j, float& sine, float& cosine) {
    __sincosf(static_cast<float>(static_cast<int32_t>(turn * j)) * kRadians, &sine, &cosine);
  };
  // Frequencies one after another are products with that of frequency one.
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

// The four lanes of a quad hold two columns each of four neighbouring 8-column blocks; afterwards lane q holds the eight columns of block
// q.
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

// Stores 16 rows of a warp's accumulator of 2N columns as bf16, whole lines of 128 bytes at a time: half of the lanes hand what they hold
// of a line to the other half. `to` is the first row's first column, rows from `rows` on are left alone.
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

// launch(Panels<n>()) with a number of panels of 64 columns, which the kernels know.
template <int kCount>
struct Panels {
  static constexpr int value = kCount;
};
template <typename Launch>
cudaError_t with_panel_count(int panels, const Launch& launch) {
  return panels == 1 ? launch(Panels<1>()) : panels == 2 ? launch(Panels<2>()) : launch(Panels<4>());
}

// Normalised rows of k and q, and the parameters that then stand for `p` (sm90_norms.cu).
cudaError_t sm90_normalise_rows(const Sm90ForwardParams& p, bf16* k, bf16* q, cudaStream_t stream);
Sm90ForwardParams with_normalised_rows(const Sm90ForwardParams& p, bf16* k, bf16* q);

// The launches, in order; each is defined in a file of its own.
cudaError_t sm90_forward_prepare(const Sm90ForwardParams& p, cudaStream_t stream);
cudaError_t sm90_forward_states(const Sm90ForwardParams& p, cudaStream_t stream);
cudaError_t sm90_forward_outputs(const Sm90ForwardParams& p, cudaStream_t stream);

// With two sections sm90_forward_outputs stops at the scores of one; then these, over both (sm90_readout.cu, sm90_forward_sections.cu).
cudaError_t sm90_forward_readout(const Sm90ForwardParams& p, cudaStream_t stream);
cudaError_t sm90_readout_again(const Sm90ForwardParams& p, __half* probs, bf16* weights0, bf16* weights1, cudaStream_t stream);
cudaError_t sm90_forward_values(const Sm90ForwardParams& p, cudaStream_t stream);

}  // namespace cyfa::cyclic_flow
