// Products of a row with the block's tiles of a matrix. A warp takes a unit of 128 columns of each chunk, for all tiles, so it waits for
// its part of the row only and multiplies it where it is. Weights are loaded from the ring into registers before the row arrives, as many
// tiles as fit. The warps' sums are added in a fixed order. Included by whole_step_sm90.cu only.
//
// A tile is multiplied by mma, 32 columns (a run) at a time. What a lane reads at once, eight columns of one row, is its part of the first
// operand as it is: of each four columns, the first two are in rows 0 to 7, the other two in rows 8 to 15. Two runs are a pair, which odd
// rows read in the other order, so that a quarter of a warp reads 128 different bytes modulo 128 of shared memory. The row of x is the
// second operand: which two of four columns a column of the operand holds follows from its bit 0, and which run from its bit 1.
//
// Between the arrival of a row and the results stands nothing but their arithmetic, in as few instructions as possible: two warps per
// scheduler hide little of each other's latency.
#pragma once

#include "cyfa/kernels/whole_step/whole_step_block.cuh"

namespace cyfa::whole_step {

using sm90::pack;
using sm90::unpack;

constexpr float kSmallest = 1.17549435e-38F;
constexpr int kHeldChunks = 6;  // in registers

// The weights of a unit and of one tile in a warp: two pairs of runs, of which an odd row has the second one first.
struct UnitWeights {
  uint4 of[2][2];
};
// A unit of x: this lane's part of the second operand for each of these.
struct UnitInputs {
  uint2 of[2][2];
};

__device__ __forceinline__ int own_warp() { return static_cast<int>(threadIdx.x) / 32; }
__device__ __forceinline__ int own_lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int tile_row() { return own_lane() / 4; }
__device__ __forceinline__ int tile_quarter() { return own_lane() % 4; }

// Where a lane finds its weights of unit `unit` of chunk `chunk` of a tile with `in` columns. Columns past the end, which x has zeros for,
// are replaced by others of the chunk.
struct UnitPlace {
  int first, other, pair;  // of the two runs, in bytes from the tile's start; of the second pair relative to the first one

  __device__ __forceinline__ UnitPlace(int in, int chunk, int unit) {
    const int column = chunk * kChunkColumns + unit * kUnitColumns;
    const int start = tile_row() * 2 * in + tile_quarter() * 16 + 2 * (column < in ? column : chunk * kChunkColumns);
    const int odd = 64 * (tile_row() & 1);
    first = start + odd;
    other = start + (64 - odd);
    pair = column + kUnitColumns / 2 < in ? kUnitColumns : 0;
  }
  // From a tile that begins `at` bytes after the start of this warp's stage.
  __device__ __forceinline__ UnitWeights load(const Block& b, int at) const {
    return {{{b.read(at + first), b.read(at + other)}, {b.read(at + first + pair), b.read(at + other + pair)}}};
  }
  // The same for one that lies in one stage.
  __device__ __forceinline__ UnitWeights load_one(const Block& b, int at) const {
    const int begin = b.stage * kStageBytes + at;
    const char* const tile = b.ring + (begin < kRingBytes ? begin : begin - kRingBytes);
    const auto read = [&](int offset) { return *reinterpret_cast<const uint4*>(tile + offset); };
    return {{{read(first), read(other)}, {read(first + pair), read(other + pair)}}};
  }
};

// Stores four neighbouring columns per lane as chunk `chunk` of the warp's row; a __syncwarp must follow. Of eight columns, the order in
// memory is 0, 1, 4, 5, 2, 3, 6, 7.
__device__ __forceinline__ void store_unit(const Block& b, int chunk, uint2 four) {
  auto* const to = reinterpret_cast<unsigned*>(b.s.row[own_warp()][chunk] + own_lane() / 2) + own_lane() % 2;
  to[0] = four.x;
  to[2] = four.y;
}
__device__ __forceinline__ UnitInputs inputs_of(const Block& b, int chunk) {
  const int column = own_lane() / 4, run = column / 2 % 2;
  const auto* const from = reinterpret_cast<const uint2*>(b.s.row[own_warp()][chunk] + tile_quarter()) + column % 2;
  UnitInputs x;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
    for (int j = 0; j < 2; ++j) x.of[pair][j] = from[16 * pair + 8 * (run ^ j)];
  }
  return x;
}

// Adds the product of run `run` of pair `pair`.
__device__ __forceinline__ void multiply(float4& sums, const UnitWeights& w, const UnitInputs& x, int pair, int run) {
  const uint4& a = w.of[pair][run];
  const uint2& by = x.of[pair][run];
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums.x), "+f"(sums.y), "+f"(sums.z), "+f"(sums.w)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(by.x), "r"(by.y));
}

// The sum of row tile_row(), in the lane that has_sum().
__device__ __forceinline__ float row_sum(float4 sums) { return sums.x + sums.w; }
__device__ __forceinline__ bool has_sum() { return tile_quarter() == (tile_row() & 1); }

__device__ __forceinline__ int first_column(int chunk) { return chunk * kChunkColumns + own_warp() * kUnitColumns + 4 * own_lane(); }
// The same, or the row's last columns for those that have none in it.
__device__ __forceinline__ int present_column(int chunk, int in) { return min(first_column(chunk), in - 4); }
__device__ __forceinline__ uint2 if_present(int chunk, int in, uint2 four) { return first_column(chunk) < in ? four : make_uint2(0, 0); }

template <int kChunks>
__device__ __forceinline__ void receive_row(const Block& b, int word, int in, Awaited what, uint2 (&row)[kChunks]) {
  ulonglong2 x[kChunks];
  const uint64_t* at[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) at[c] = b.from(word + present_column(c, in) / 2);
  b.receive(x, at, what);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) row[c] = if_present(c, in, make_uint2(low(x[c].x), low(x[c].y)));
}

// Stores a row of the residual stream, times the weight of its norm; the division by the RMS follows after the product. Returns this lane's
// part of the sum of squares.
template <int kChunks>
__device__ __forceinline__ float store_normed(const Block& b, const uint2 (&row)[kChunks], const float4 (&weight)[kChunks]) {
  float squares = 0.0F;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const float2 x = unpack(row[c].x), y = unpack(row[c].y);
    store_unit(b, c, make_uint2(pack(x.x * weight[c].x, x.y * weight[c].y), pack(y.x * weight[c].z, y.y * weight[c].w)));
    squares = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(y.x, y.x, fmaf(y.y, y.y, squares))));
  }
  return squares;
}

// Receives and stores the outputs of the heads, divided by their RMS. The columns of a head are a multiple of 64, and the number of its
// parts a power of two up to 16: so that many neighbouring lanes have columns of one head.
template <int kChunks>
__device__ __forceinline__ void store_heads(const Block& b, int in) {
  const Sizes& n = b.p.n;
  const int parts = n.value_parts(), own = own_lane() & (parts - 1), log_width = 31 - __clz(n.V);
  ulonglong2 words[2 * kChunks];  // the lane's columns, then two of the head's sums of squares
  const uint64_t* at[2 * kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int column = present_column(c, in);
    at[c] = b.from(b.words.o + column / 2);
    at[kChunks + c] = b.from(b.words.squares + (column >> log_width) * parts + (own & ~1));
  }
  b.receive(words, at, kHeads);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    float sum = low_float((own & 1) == 0 ? words[kChunks + c].x : words[kChunks + c].y);
#pragma unroll 1
    for (int distance = parts / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
    const float rate = rsqrtf(fmaxf(__fdividef(sum, static_cast<float>(n.V)) + b.p.o_eps, kSmallest));
    const float2 x = unpack(low(words[c].x)), y = unpack(low(words[c].y));
    store_unit(b, c, if_present(c, in, make_uint2(pack(x.x * rate, x.y * rate), pack(y.x * rate, y.y * rate))));
  }
}

// The sum of row `row` of `part` over the warps.
__device__ __forceinline__ float sum_of_warps(const float* of_warps) {
  static_assert(kWarps == 8);
  const float4 a = reinterpret_cast<const float4*>(of_warps)[0], c = reinterpret_cast<const float4*>(of_warps)[1];
  return ((a.x + a.y) + (a.z + a.w)) + ((c.x + c.y) + (c.z + c.w));
}

// The product of a phase. kChunks: of a row, or more than it has. prepare(): called before weights fill the registers. store(): receives
// the row and stores it, and returns this lane's part of its sum of squares. write(first, count): has the sums of tiles first .. first +
// count - 1 in `part` and `squares` of this turn.
template <int kChunks, class Prepare, class Store, class Write>
__device__ __forceinline__ void product(Block& b, const Work& work, const Prepare& prepare, const Store& store, const Write& write) {
  constexpr int kTiles = kHeldChunks / kChunks;  // in registers
  const int tiles = work.tiles, chunks = chunks_of(work.in), stages = stages_of(2 * kTileRows * work.in);
  const int held_stages = min(tiles, kTiles) * stages;
  const auto load = [&](const UnitPlace& place, int at) { return kChunks == 1 ? place.load_one(b, at) : place.load(b, at); };
  b.take(held_stages);
  b.mark(work.marks);
  prepare();
  UnitWeights held[kTiles][kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const UnitPlace place(work.in, c, own_warp());
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t < tiles && c < chunks) {
        held[t][c] = load(place, t * stages * kStageBytes);
      } else {
        held[t][c] = {};
      }
    }
  }
  b.give_back(held_stages);
  b.mark(work.marks + 1);
  float squares = store();
  __syncwarp();
  b.mark(work.marks + 2);
  float4 sums[kTiles][kChunks] = {};  // every mma of a chain waits for the one before it
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (c >= chunks) break;
    const UnitInputs x = inputs_of(b, c);
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) multiply(sums[t][c], held[t][c], x, quarter / 2, quarter % 2);
      if (c == 0) squares += __shfl_xor_sync(0xFFFFFFFFU, squares, 16 >> quarter);  // meanwhile
    }
  }
  squares += __shfl_xor_sync(0xFFFFFFFFU, squares, 1);
  const int own = tile_row() * kWarps + own_warp();
  if (has_sum()) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {  // those of tiles that there are not are not read
      float sum = row_sum(sums[t][0]);
#pragma unroll
      for (int c = 1; c < kChunks; ++c) sum += row_sum(sums[t][c]);
      (&b.s.part[b.turn][kTileRows * t][0])[own] = sum;
    }
  }
#pragma unroll 1
  for (int first = 0; first < tiles; first += kRound) {
    const int count = min(kRound, tiles - first);
    if (own_lane() == 0) b.s.squares[b.turn][own_warp()] = squares;
#pragma unroll 1
    for (int t = first == 0 ? kTiles : 0; t < count; ++t) {
      float sum = 0.0F;
      b.take(stages);
#pragma unroll 1
      for (int c = 0; c < chunks; ++c) {
        const UnitWeights now = load(UnitPlace(work.in, c, own_warp()), 0);
        const UnitInputs x = inputs_of(b, c);
        float4 chains[2] = {};
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) multiply(chains[quarter / 2], now, x, quarter / 2, quarter % 2);
        sum += row_sum(chains[0]) + row_sum(chains[1]);
      }
      b.give_back(stages);
      if (has_sum()) (&b.s.part[b.turn][kTileRows * t][0])[own] = sum;
    }
    b.mark(work.marks + 3);
    b.consumers_meet();
    write(first, count);
    b.turn ^= 1;
  }
  b.mark(work.marks + 4);
}

}  // namespace cyfa::whole_step
