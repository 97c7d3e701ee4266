// Products of a row with the block's tiles of a matrix. Each warp takes every eighth unit of 128 columns for all tiles, so it waits for its
// part of the row only and multiplies it where it is. Weights are loaded from the ring into registers before the row arrives, as many tiles
// as fit. The warps' sums are added in their order. Included by whole_step_sm90.cu only.
//
// A tile is multiplied by mma with its rows as rows 0 to 7 of the first operand for one run of 32 columns and as rows 8 to 15 for the next
// one. The row of x is the second operand: even columns hold the first run, odd ones the other. For odd rows the two runs are exchanged, so
// that a quarter of a warp reads 128 different bytes modulo 128 of shared memory.
#pragma once

#include "cyfa/kernels/whole_step/whole_step_block.cuh"

namespace cyfa::whole_step {

using sm90::pack;
using sm90::unpack;

constexpr float kSmallest = 1.17549435e-38F;

// The weights of a unit and of one tile in a warp: two pairs of runs.
struct UnitWeights {
  uint4 of[2][2];
};
// A unit of x: for each pair the run of this lane's column of the operand.
struct UnitInputs {
  uint4 of[2];
};

__device__ __forceinline__ int tile_row() { return static_cast<int>(threadIdx.x) % 32 / 4; }
__device__ __forceinline__ int tile_quarter() { return static_cast<int>(threadIdx.x) % 4; }

// Loads unit `unit` of a tile that is at `base` in the ring. Columns past the end are zero.
__device__ __forceinline__ UnitWeights load_unit(const Block& b, int base, int in, int unit) {
  UnitWeights w;
  const int at = base + tile_row() * 2 * in + unit * 2 * kUnitColumns + tile_quarter() * 16, odd = tile_row() & 1;
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const bool has = unit * kUnitColumns + 64 * pair < in;
#pragma unroll
    for (int run = 0; run < 2; ++run) w.of[pair][run] = has ? b.read(at + 128 * pair + 64 * (run ^ odd)) : make_uint4(0, 0, 0, 0);
  }
  return w;
}

// From four neighbouring columns per lane, as two times two bf16.
__device__ __forceinline__ UnitInputs spread(uint2 four) {
  UnitInputs x;
  const int first = 8 * (tile_row() & 1) + 2 * tile_quarter();
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const int lane = 16 * pair + first;
    x.of[pair].x = __shfl_sync(0xFFFFFFFFU, four.x, lane);
    x.of[pair].y = __shfl_sync(0xFFFFFFFFU, four.y, lane);
    x.of[pair].z = __shfl_sync(0xFFFFFFFFU, four.x, lane + 1);
    x.of[pair].w = __shfl_sync(0xFFFFFFFFU, four.y, lane + 1);
  }
  return x;
}

__device__ __forceinline__ void multiply(float4& sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums.x), "+f"(sums.y), "+f"(sums.z), "+f"(sums.w)
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Adds half of a pair of runs.
__device__ __forceinline__ void multiply(float4& sums, const UnitWeights& w, const UnitInputs& x, int pair, int half) {
  const uint4 &a = w.of[pair][0], &b = w.of[pair][1], &by = x.of[pair];
  if (half == 0) {
    multiply(sums, a.x, b.x, a.y, b.y, by.x, by.y);
  } else {
    multiply(sums, a.z, b.z, a.w, b.w, by.z, by.w);
  }
}

// The sum of row tile_row(): the same in the four lanes of a row.
__device__ __forceinline__ float row_sum(float4 sums) { return (tile_row() & 1) == 0 ? sums.x + sums.w : sums.y + sums.z; }

// Four columns per lane of each of the warp's units, in bf16; zero past the end.
template <int kUnits>
struct Fours {
  uint2 of[kUnits];
};

// The warp's units of x. Many of them are spread each time they are used, to save registers.
template <int kUnits>
class Units {
 public:
  __device__ __forceinline__ void set(int i, uint2 four) {
    if constexpr (kSpread) {
      spread_[i] = spread(four);
    } else {
      four_[i] = four;
    }
  }
  __device__ __forceinline__ UnitInputs at(int i) const {
    if constexpr (kSpread) {
      return spread_[i];
    } else {
      return spread(four_[i]);
    }
  }

 private:
  static constexpr bool kSpread = kUnits <= 3;
  UnitInputs spread_[kSpread ? kUnits : 1];
  uint2 four_[kSpread ? 1 : kUnits];
};

__device__ __forceinline__ int unit_of(int i) { return static_cast<int>(threadIdx.x) / 32 + kWarps * i; }
__device__ __forceinline__ int first_column(int i) { return unit_of(i) * kUnitColumns + 4 * (static_cast<int>(threadIdx.x) % 32); }

template <int kUnits>
__device__ __forceinline__ Fours<kUnits> receive_row(const Block& b, int word, int in, Awaited what) {
  ulonglong2 x[kUnits];
  const uint64_t* at[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) at[i] = first_column(i) < in ? b.from(word + first_column(i) / 2) : nullptr;
  b.receive(x, at, what);
  Fours<kUnits> row;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) row.of[i] = make_uint2(low(x[i].x), low(x[i].y));
  return row;
}

// A row of the residual stream, times the weight of its norm; the division by the RMS follows after the product.
template <int kUnits>
class NormedRow {
 public:
  static constexpr bool kNorm = true;

  // row: null, or the row itself instead of words.
  __device__ NormedRow(const Block& b, const float* weight, int word, const void* row, Awaited what)
      : b_(b), row_(static_cast<const __nv_bfloat16*>(row)), word_(word), what_(what) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int column = first_column(i);
      weight_[i] = column < b.p.n.D ? __ldg(reinterpret_cast<const float4*>(weight + column)) : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    }
  }

  // Returns this lane's part of the sum of squares.
  __device__ float get(Units<kUnits>& x) const {
    Fours<kUnits> row;
    if (row_ == nullptr) {
      row = receive_row<kUnits>(b_, word_, b_.p.n.D, what_);
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const int column = first_column(i);
        row.of[i] = column < b_.p.n.D ? *reinterpret_cast<const uint2*>(row_ + column) : make_uint2(0, 0);
      }
    }
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const float2 a = unpack(row.of[i].x), c = unpack(row.of[i].y);
      squares = fmaf(a.x, a.x, fmaf(a.y, a.y, fmaf(c.x, c.x, fmaf(c.y, c.y, squares))));
      const float4 by = weight_[i];
      x.set(i, make_uint2(pack(a.x * by.x, a.y * by.y), pack(c.x * by.z, c.y * by.w)));
    }
    return squares;
  }

 private:
  const Block& b_;
  const __nv_bfloat16* row_;
  int word_;
  Awaited what_;
  float4 weight_[kUnits];
};

// The hidden units.
template <int kUnits>
class PlainRow {
 public:
  static constexpr bool kNorm = false;
  __device__ explicit PlainRow(const Block& b) : b_(b) {}
  __device__ float get(Units<kUnits>& x) const {
    const Fours<kUnits> row = receive_row<kUnits>(b_, b_.words.hidden, b_.p.n.F, kHidden);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) x.set(i, row.of[i]);
    return 0.0F;
  }

 private:
  const Block& b_;
};

// The outputs of the heads, divided by their RMS. The columns of a head are a multiple of 64, and the number of its parts a power of two up
// to 16: so that many neighbouring lanes have columns of one head.
template <int kUnits>
class HeadsRow {
 public:
  static constexpr bool kNorm = false;
  __device__ explicit HeadsRow(const Block& b) : b_(b) {}
  __device__ float get(Units<kUnits>& x) const {
    const Sizes& n = b_.p.n;
    const int parts = n.value_parts(), own = static_cast<int>(threadIdx.x) % parts;
    ulonglong2 words[2 * kUnits];  // the lane's columns, then two of the head's sums of squares
    const uint64_t* at[2 * kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int column = first_column(i);
      const bool has = column < n.H * n.V;
      at[i] = has ? b_.from(b_.words.o + column / 2) : nullptr;
      at[kUnits + i] = has ? b_.from(b_.words.squares + column / n.V * parts + (own & ~1)) : nullptr;
    }
    b_.receive(words, at, kHeads);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float sum = low_float((own & 1) == 0 ? words[kUnits + i].x : words[kUnits + i].y);
      for (int distance = parts / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
      const float rate = rsqrtf(fmaxf(sum / static_cast<float>(n.V) + b_.p.o_eps, kSmallest));
      const float2 a = unpack(low(words[i].x)), c = unpack(low(words[i].y));
      x.set(i, make_uint2(pack(a.x * rate, a.y * rate), pack(c.x * rate, c.y * rate)));
    }
    return 0.0F;
  }

 private:
  const Block& b_;
};

// The sums of a round of tiles, after they are complete.
struct Sums {
  const float (*part)[kRound * kTileRows];
  const float* squares;
  int first, count;  // tiles of the round
  int in;
  float eps;

  // Row `row` of the round's tiles, over all columns.
  __device__ float at(int row) const {
    float sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += part[w][row];
    return sum;
  }
  // 1 / RMS of the row of x.
  __device__ float rate() const {
    float sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += squares[w];
    return rsqrtf(fmaxf(sum / static_cast<float>(in) + eps, kSmallest));
  }
};

// kUnits: units of a row per warp, rounded up. kHold: tiles in registers, the others are multiplied from the ring. marks: three, when
// weights are there, x has arrived, and results are on their way. write(Sums) is called by whole warps.
template <int kUnits, int kHold, class Row, class Write>
__device__ __forceinline__ void product(Block& b, int tiles, int in, int marks, const Row& row, const Write& write) {
  if (tiles == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int each = b.p.n.stages_of(2 * kTileRows * in);
  constexpr int kHeld = kHold > 0 ? kHold : 1;  // no array has no elements
  UnitWeights held[kHeld][kUnits];
#pragma unroll
  for (int t = 0; t < kHold; ++t) {
    if (t < tiles) {
      const int base = b.take(each);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) held[t][i] = load_unit(b, base, in, unit_of(i));
      b.give_back(each);
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) held[t][i] = {};
    }
  }
  b.mark(marks);
  Units<kUnits> x;
  const float squares = row.get(x);
  b.mark(marks + 1);
  // Every mma of a chain waits for the one before it.
  constexpr int kChains = kHold >= 3 ? 1 : 4;
  float4 sums[kHeld][kChains] = {};
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const UnitInputs unit = x.at(i);
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
#pragma unroll
      for (int t = 0; t < kHold; ++t) multiply(sums[t][quarter % kChains], held[t][i], unit, quarter / 2, quarter % 2);
    }
  }
  for (int first = 0; first < tiles; first += kRound) {
    const int count = min(kRound, tiles - first);
    float* const part = b.s.part[b.turn][warp];
    if (Row::kNorm) {
      const float sum = rowwise::warp_sum(squares);
      if (lane == 0) b.s.squares[b.turn][warp] = sum;
    }
    if (first == 0) {
#pragma unroll
      for (int t = 0; t < kHold; ++t) {
        float sum = row_sum(sums[t][0]);
#pragma unroll
        for (int chain = 1; chain < kChains; ++chain) sum += row_sum(sums[t][chain]);
        if (t < tiles && tile_quarter() == 0) part[kTileRows * t + tile_row()] = sum;
      }
    }
#pragma unroll 1
    for (int t = first == 0 ? kHold : 0; t < count; ++t) {
      const int base = b.take(each);
      UnitWeights now[kUnits];
#pragma unroll
      for (int i = 0; i < kUnits; ++i) now[i] = load_unit(b, base, in, unit_of(i));
      b.give_back(each);
      float4 chains[4] = {};
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const UnitInputs unit = x.at(i);
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) multiply(chains[quarter], now[i], unit, quarter / 2, quarter % 2);
      }
      const float sum = (row_sum(chains[0]) + row_sum(chains[1])) + (row_sum(chains[2]) + row_sum(chains[3]));
      if (tile_quarter() == 0) part[kTileRows * t + tile_row()] = sum;
    }
    b.consumers_meet();
    write(Sums{b.s.part[b.turn], b.s.squares[b.turn], first, count, in, b.p.eps});
    b.turn ^= 1;
  }
  b.mark(marks + 2);
}

}  // namespace cyfa::whole_step
