// gemv written once over a vector type. Included by gemv.cc, gemv_avx2.cc and gemv_avx512.cc only; in an anonymous namespace since
// the three are compiled for different instruction sets and linked together.
#pragma once

#include <stdint.h>

#include "cyfa/kernels/dense/gemv.h"

namespace cyfa::dense {

// Empty where the file was compiled for another architecture.
void gemv_avx2(const Gemv& g, int64_t begin, int64_t end);
void gemv_avx512(const Gemv& g, int64_t begin, int64_t end);

namespace {

template <class Vec>
Vec load(const float* from) {
  return Vec::load(from);
}
template <class Vec>
Vec load(const uint16_t* from) {
  return Vec::load_bf16(from);
}
template <class Vec>
Vec load_first(const float* from, int64_t count) {
  return Vec::load_first(from, count);
}
template <class Vec>
Vec load_first(const uint16_t* from, int64_t count) {
  uint16_t whole[Vec::kWidth] = {};
  for (int64_t i = 0; i < count; ++i) whole[i] = from[i];
  return Vec::load_bf16(whole);
}

// Bytes ahead of its use at which a weight row is asked for.
constexpr int64_t kAheadBytes = 1024;

// kRows rows of the weight times kBatch vectors, in registers: one accumulator a pair, which runs along the whole row.
template <class Vec, int kRows, int kBatch, class Weight>
void block(const Gemv& g, int64_t row, int64_t b) {
  const Weight* w[kRows];
  const float* x[kBatch];
  for (int r = 0; r < kRows; ++r) w[r] = static_cast<const Weight*>(g.weight) + (row + r) * g.in;
  for (int n = 0; n < kBatch; ++n) x[n] = g.x + (b + n) * g.in;
  Vec sum[kRows][kBatch];
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kBatch; ++n) sum[r][n] = Vec::zero();
  }
  int64_t i = 0;
  for (; i + Vec::kWidth <= g.in; i += Vec::kWidth) {
    Vec weight[kRows];
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kBatch == 1) __builtin_prefetch(reinterpret_cast<const char*>(w[r] + i) + kAheadBytes, 0, 3);
      weight[r] = load<Vec>(w[r] + i);
    }
    for (int n = 0; n < kBatch; ++n) {
      const Vec part = Vec::load(x[n] + i);
      for (int r = 0; r < kRows; ++r) sum[r][n] = fma(weight[r], part, sum[r][n]);
    }
  }
  if (i < g.in) {
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = load_first<Vec>(w[r] + i, g.in - i);
      for (int n = 0; n < kBatch; ++n) sum[r][n] = fma(weight, Vec::load_first(x[n] + i, g.in - i), sum[r][n]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const float bias = g.bias == nullptr ? 0.0F : g.bias[row + r];
    for (int n = 0; n < kBatch; ++n) g.y[(b + n) * g.out + row + r] = Vec::sum(sum[r][n]) + bias;
  }
}

// Rows taken together meet every vector while they are in the cache, so that the weights come from memory once.
template <class Vec, int kRows, class Weight>
void rows(const Gemv& g, int64_t row) {
  int64_t b = 0;
  for (; b + 3 <= g.batch; b += 3) block<Vec, kRows, 3, Weight>(g, row, b);
  if (g.batch - b == 2) block<Vec, kRows, 2, Weight>(g, row, b);
  if (g.batch - b == 1) block<Vec, kRows, 1, Weight>(g, row, b);
}

template <class Vec, class Weight>
void gemv_typed(const Gemv& g, int64_t begin, int64_t end) {
  int64_t row = begin;
  for (; row + 4 <= end; row += 4) rows<Vec, 4, Weight>(g, row);
  for (; row < end; ++row) rows<Vec, 1, Weight>(g, row);
}

template <class Vec>
void gemv(const Gemv& g, int64_t begin, int64_t end) {
  if (g.type == WeightType::kF32) {
    gemv_typed<Vec, float>(g, begin, end);
  } else {
    gemv_typed<Vec, uint16_t>(g, begin, end);
  }
}

}  // namespace
}  // namespace cyfa::dense
