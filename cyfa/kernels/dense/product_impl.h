// product.h as a template over a vector type. Included only by product.cc, product_avx2.cc and product_avx512.cc, which are compiled for
// different instruction sets and linked together: everything is in an anonymous namespace, so that the linker merges no function of one
// with that of another.
//
// A panel of kVecs vectors of columns of b is copied to a buffer in the L1 cache, and then multiplied with all rows of a, kRows at a time,
// whose sums stay in registers.
#pragma once

#include <stdint.h>

#include <utility>

#include "cyfa/kernels/dense/product.h"

namespace cyfa::dense {

// Empty if the file was compiled for another architecture.
void product_avx2(const Product& p);
void product_avx512(const Product& p);
void transpose_avx2(int64_t rows, int64_t columns, const float* from, float* to);
void transpose_avx512(int64_t rows, int64_t columns, const float* from, float* to);

namespace {

// Vectors of columns in a panel.
constexpr int64_t kVecs = 2;

// Rows of a panel, and products that are summed before the sum is added to c. Against 256, the sums of sums have 0.5 to 0.8 of the error
// (results and gradients of cyclic_flow with K = V = 256, relative L2), and backward takes 325 in place of 345 us for a chunk.
constexpr int64_t kDepth = 64;

// Rows of a tile: 8 x 2 sums, 2 vectors of b and the broadcast number of a fit into the 32 registers of AVX-512; 6 x 2 into 16. With 10, 12
// or 14 rows AVX-512 is equally fast, and less of a triangle is left out.
template <class Vec>
constexpr int64_t kRows = Vec::kWidth == 16  ? 8
                          : Vec::kWidth == 8 ? 6
                                             : 4;

template <class Vec>
constexpr int64_t kPanel = kVecs* Vec::kWidth;

template <class Vec, int64_t... kLane>
Vec interleave_low(Vec a, Vec b, std::integer_sequence<int64_t, kLane...>) {
  return {__builtin_shufflevector(a.x, b.x, (kLane / 2 + kLane % 2 * Vec::kWidth)...)};
}
template <class Vec, int64_t... kLane>
Vec interleave_high(Vec a, Vec b, std::integer_sequence<int64_t, kLane...>) {
  return {__builtin_shufflevector(a.x, b.x, (Vec::kWidth / 2 + kLane / 2 + kLane % 2 * Vec::kWidth)...)};
}

// Transposes a square of kWidth vectors: interleaving the first with the second half of the vectors, log2(kWidth) times, does it.
template <class Vec>
void transpose_square(Vec* x) {
  constexpr int64_t kWidth = Vec::kWidth;
  constexpr auto kLanes = std::make_integer_sequence<int64_t, kWidth>();
#pragma GCC unroll 4
  for (int64_t step = 1; step < kWidth; step *= 2) {
    Vec y[kWidth];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kWidth / 2; ++i) {
      y[2 * i] = interleave_low(x[i], x[i + kWidth / 2], kLanes);
      y[2 * i + 1] = interleave_high(x[i], x[i + kWidth / 2], kLanes);
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < kWidth; ++i) x[i] = y[i];
  }
}

// Transposes up to kWidth rows and columns of `from` into rows of kWidth numbers; those without a row of `from` become zero.
template <class Vec>
void move_square(int64_t rows, int64_t columns, const float* from, int64_t from_row, float* to, int64_t to_row) {
  constexpr int64_t kWidth = Vec::kWidth;
  Vec square[kWidth];
  if (rows >= kWidth && columns >= kWidth) {
#pragma GCC unroll 16
    for (int64_t r = 0; r < kWidth; ++r) square[r] = Vec::load(from + r * from_row);
    transpose_square(square);
#pragma GCC unroll 16
    for (int64_t c = 0; c < kWidth; ++c) square[c].store(to + c * to_row);
    return;
  }
  const int64_t count = columns < kWidth ? columns : kWidth;
  for (int64_t r = 0; r < kWidth; ++r) square[r] = r < rows ? Vec::load_first(from + r * from_row, count) : Vec::zero();
  transpose_square(square);
  for (int64_t c = 0; c < count; ++c) square[c].store(to + c * to_row);
}

// panel[i, j] = b[i, j] for i < depth and j < columns, and 0 for the other j < kPanel.
template <class Vec>
void fill_panel(MatrixView b, int64_t depth, int64_t columns, float* panel) {
  constexpr int64_t kWidth = Vec::kWidth;
  if (b.column == 1) {
    for (int64_t i = 0; i < depth; ++i, panel += kPanel<Vec>) {
      const float* row = b.data + i * b.row;
      if (columns == kPanel<Vec>) {
#pragma GCC unroll 2
        for (int64_t v = 0; v < kVecs; ++v) Vec::load(row + v * kWidth).store(panel + v * kWidth);
      } else {
        for (int64_t j = 0; j < kPanel<Vec>; ++j) panel[j] = j < columns ? row[j] : 0.0F;
      }
    }
    return;
  }
  for (int64_t first = 0; first < kPanel<Vec>; first += kWidth) {
    for (int64_t i = 0; i < depth; i += kWidth) {
      move_square<Vec>(columns - first, depth - i, b.data + first * b.column + i, b.column, panel + i * kPanel<Vec> + first, kPanel<Vec>);
    }
  }
}

// Where a tile goes: c = sums + keep * base, `columns` wide.
struct Target {
  float* c;
  const float* base;
  int64_t row, columns;
  float keep;
};

// `rows` rows of a times a panel. kAlong: a[i, l] is a[i * step + l], else a[i + l * step].
template <class Vec, int64_t rows, bool kAlong>
void tile(int64_t depth, const float* a, int64_t step, const float* panel, const Target& to) {
  constexpr int64_t kWidth = Vec::kWidth;
  Vec sum[rows][kVecs];
#pragma GCC unroll 16
  for (int64_t i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVecs; ++v) sum[i][v] = Vec::zero();
  }
  for (int64_t l = 0; l < depth; ++l, panel += kPanel<Vec>, a += kAlong ? 1 : step) {
    Vec b[kVecs];
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVecs; ++v) b[v] = Vec::load(panel + v * kWidth);
#pragma GCC unroll 16
    for (int64_t i = 0; i < rows; ++i) {
      const Vec x = Vec::broadcast(a[kAlong ? i * step : i]);
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVecs; ++v) sum[i][v] = fma(x, b[v], sum[i][v]);
    }
  }
  const Vec keep = Vec::broadcast(to.keep);
#pragma GCC unroll 16
  for (int64_t i = 0; i < rows; ++i) {
    float* c = to.c + i * to.row;
    const float* base = to.base + i * to.row;
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVecs; ++v) {
      const int64_t left = to.columns - v * kWidth;
      if (left >= kWidth) {
        (to.keep == 0.0F ? sum[i][v] : fma(keep, Vec::load(base + v * kWidth), sum[i][v])).store(c + v * kWidth);
      } else if (left > 0) {
        (to.keep == 0.0F ? sum[i][v] : fma(keep, Vec::load_first(base + v * kWidth, left), sum[i][v])).store_first(c + v * kWidth, left);
      }
    }
  }
}

using Tile = void (*)(int64_t, const float*, int64_t, const float*, const Target&);

// tile<Vec, rows, kAlong> for rows = 1 .. kRows at index rows - 1.
template <class Vec, bool kAlong, int64_t... kIndex>
const Tile* tiles(std::integer_sequence<int64_t, kIndex...>) {
  static constexpr Tile kAll[] = {tile<Vec, kIndex + 1, kAlong>...};
  return kAll;
}

template <class Vec>
void product_of(const Product& p) {
  constexpr auto kIndices = std::make_integer_sequence<int64_t, kRows<Vec>>();
  const bool along = p.a.column == 1;
  const Tile* const by_rows = along ? tiles<Vec, true>(kIndices) : tiles<Vec, false>(kIndices);
  const int64_t step = along ? p.a.row : p.a.column;
  alignas(64) float panel[kDepth * kPanel<Vec>];
  // At least one round, also for k = 0: c must be written.
  for (int64_t first = 0; first == 0 || first < p.k; first += kDepth) {
    const int64_t depth = p.k - first < kDepth ? p.k - first : kDepth;
    for (int64_t j = 0; j < p.n; j += kPanel<Vec>) {
      const int64_t columns = p.n - j < kPanel<Vec> ? p.n - j : kPanel<Vec>;
      fill_panel<Vec>({p.b.data + first * p.b.row + j * p.b.column, p.b.row, p.b.column}, depth, columns, panel);
      for (int64_t i = 0; i < p.m; i += kRows<Vec>) {
        const int64_t rows = p.m - i < kRows<Vec> ? p.m - i : kRows<Vec>;
        if (p.triangle == Triangle::kLowerResult && j >= i + rows) continue;
        int64_t begin = 0;
        int64_t end = depth;
        if (p.triangle == Triangle::kLowerLeft && i + rows - first < end) end = i + rows - first;
        if (p.triangle == Triangle::kUpperLeft && i - first > begin) begin = i - first;
        if (begin >= end && first > 0) continue;
        const float* a = p.a.data + i * p.a.row + (first + begin) * p.a.column;
        const int64_t at = i * p.c_row + j;
        const bool again = first > 0;
        by_rows[rows - 1](begin < end ? end - begin : 0, a, step, panel + begin * kPanel<Vec>,
                          {p.c + at, (again || p.keep == 0.0F ? p.c : p.base) + at, p.c_row, columns, again ? 1.0F : p.keep});
      }
    }
  }
}

template <class Vec>
void transpose_of(int64_t rows, int64_t columns, const float* from, float* to) {
  constexpr int64_t kWidth = Vec::kWidth;
  const int64_t whole = rows / kWidth * kWidth;
  for (int64_t c = 0; c < columns; c += kWidth) {
    for (int64_t r = 0; r < whole; r += kWidth)
      move_square<Vec>(kWidth, columns - c, from + r * columns + c, columns, to + c * rows + r, rows);
  }
  for (int64_t r = whole; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  }
}

}  // namespace
}  // namespace cyfa::dense
