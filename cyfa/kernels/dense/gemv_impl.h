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

// kRows rows of the weight times kBatch vectors, in registers: one accumulator a pair, which runs along the whole row. kPrefetch: the rows
// that come next are asked for meanwhile.
template <class Vec, int kRows, int kBatch, bool kPrefetch, class Weight>
void block(const Gemv& g, int64_t row, int64_t b) {
  const Weight* w = static_cast<const Weight*>(g.weight) + row * g.in;
  const float* x = g.x + b * kPack;
  Vec sum[kRows][kBatch];
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kBatch; ++n) sum[r][n] = Vec::zero();
  }
  int64_t i = 0;
  for (; i + kPack <= g.in; i += kPack, x += g.batch * kPack) {
    if constexpr (kPrefetch) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(w + (kRows + r) * g.in + i, 0, 3);
    }
#pragma GCC unroll 4
    for (int64_t part = 0; part < kPack; part += Vec::kWidth) {
      Vec weight[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) weight[r] = load<Vec>(w + r * g.in + i + part);
#pragma GCC unroll 8
      for (int n = 0; n < kBatch; ++n) {
        const Vec xn = Vec::load(x + n * kPack + part);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sum[r][n] = fma(weight[r], xn, sum[r][n]);
      }
    }
  }
  for (int64_t part = 0; i + part < g.in; part += Vec::kWidth) {
    const int64_t left = g.in - i - part < Vec::kWidth ? g.in - i - part : Vec::kWidth;
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = load_first<Vec>(w + r * g.in + i + part, left);
      for (int n = 0; n < kBatch; ++n) sum[r][n] = fma(weight, Vec::load(x + n * kPack + part), sum[r][n]);
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
  if (g.batch >= 4) {
    block<Vec, kRows, 4, true, Weight>(g, row, 0);
    for (b = 4; b + 4 <= g.batch; b += 4) block<Vec, kRows, 4, false, Weight>(g, row, b);
  }
  switch (g.batch - b) {
    case 3:
      return block<Vec, kRows, 3, true, Weight>(g, row, b);
    case 2:
      return block<Vec, kRows, 2, true, Weight>(g, row, b);
    case 1:
      return block<Vec, kRows, 1, true, Weight>(g, row, b);
    default:
      return;
  }
}

// One vector: eight rows of weights on their way hide the memory's latency. Several: 3 rows by 4 vectors fill the sixteen registers of AVX2.
template <class Vec, class Weight>
void gemv_typed(const Gemv& g, int64_t begin, int64_t end) {
  int64_t row = begin;
  if (g.batch == 1) {
    for (; row + 8 <= end; row += 8) block<Vec, 8, 1, true, Weight>(g, row, 0);
  } else {
    for (; row + 3 <= end; row += 3) rows<Vec, 3, Weight>(g, row);
  }
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
