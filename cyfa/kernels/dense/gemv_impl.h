// The matrix-vector product of gemv.h as a template over a vector type. Included only by gemv.cc, gemv_avx2.cc and gemv_avx512.cc. The
// template is in an anonymous namespace, because these files are compiled for different instruction sets and linked together.
#pragma once

#include <stdint.h>

#include "cyfa/kernels/dense/gemv.h"

namespace cyfa::dense {

// Empty functions in builds for other architectures.
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

// Cache blocking for several vectors: 512 columns of eight vectors are 16 KB, which stay in the L1 cache while kChunk rows of weights are
// read. Runs at 115 to 125 GFLOP/s on two cores, against 80 to 90 without blocking.
constexpr int64_t kStretch = 512;  // columns of a block
constexpr int64_t kChunk = 24;     // rows of weights per block
constexpr int64_t kTogether = 8;   // vectors per block

// Adds to sum[r][n] the products of columns begin .. end - 1 of weight rows w .. w + kRows - 1 and kBatch vectors. `x` points at column
// `begin` of the first vector, interleaved. kPrefetch: prefetches the kRows rows that follow.
template <class Vec, int kRows, int kBatch, bool kPrefetch, class Weight>
void multiply(const Gemv& g, const Weight* w, const float* x, int64_t begin, int64_t end, Vec (*sum)[kBatch]) {
  const int64_t in = g.in, step = g.batch * kInterleave, whole = (end - begin) / kInterleave;
  w += begin;
  for (int64_t block = 0; block < whole; ++block, w += kInterleave, x += step) {
    if constexpr (kPrefetch) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(w + (kRows + r) * in, 0, 3);
    }
#pragma GCC unroll 4
    for (int64_t part = 0; part < kInterleave; part += Vec::kWidth) {
      Vec weight[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) weight[r] = load<Vec>(w + r * in + part);
#pragma GCC unroll 8
      for (int n = 0; n < kBatch; ++n) {
        const Vec xn = Vec::load(x + n * kInterleave + part);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sum[r][n] = fma(weight[r], xn, sum[r][n]);
      }
    }
  }
  const int64_t rest = end - begin - whole * kInterleave;
  for (int64_t part = 0; part < rest; part += Vec::kWidth) {
    const int64_t left = rest - part < Vec::kWidth ? rest - part : Vec::kWidth;
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = load_first<Vec>(w + r * in + part, left);
      for (int n = 0; n < kBatch; ++n) sum[r][n] = fma(weight, Vec::load(x + n * kInterleave + part), sum[r][n]);
    }
  }
}

// One vector: eight rows at a time, so that enough loads of weights are in flight to hide the memory latency.
template <class Vec, int kRows, class Weight>
void rows_of_one(const Gemv& g, int64_t row) {
  Vec sum[kRows][1];
  for (int r = 0; r < kRows; ++r) sum[r][0] = Vec::zero();
  multiply<Vec, kRows, 1, true>(g, static_cast<const Weight*>(g.weight) + row * g.in, g.x, 0, g.in, sum);
  for (int r = 0; r < kRows; ++r) g.y[row + r] = Vec::sum(sum[r][0]) + (g.bias == nullptr ? 0.0F : g.bias[row + r]);
}

// Adds one column block to the sums of kRows rows and kBatch vectors. The sums stay in `kept` between column blocks.
template <class Vec, int kRows, int kBatch, bool kPrefetch, class Weight>
[[gnu::noinline]] void stretch(const Gemv& g, const Weight* w, int64_t b, int64_t begin, int64_t end,
                               float (*kept)[kTogether][Vec::kWidth]) {
  Vec sum[kRows][kBatch];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < kBatch; ++n) sum[r][n] = Vec::load(kept[r][n]);
  }
  multiply<Vec, kRows, kBatch, kPrefetch>(g, w, g.x + begin * g.batch + b * kInterleave, begin, end, sum);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < kBatch; ++n) sum[r][n].store(kept[r][n]);
  }
}

// One column block of kRows rows and up to kTogether vectors. Three rows by four vectors use all sixteen registers of AVX2: twelve sums,
// three weights, one x.
template <class Vec, int kRows, class Weight>
void stretches(const Gemv& g, const Weight* w, int64_t b, int64_t batch, int64_t begin, int64_t end,
               float (*kept)[kTogether][Vec::kWidth]) {
  using Kept = float(*)[kTogether][Vec::kWidth];
  const auto from = [&](int64_t n) { return reinterpret_cast<Kept>(kept[0][n]); };
  int64_t n = 0;
  for (; n + 4 <= batch; n += 4) {
    n == 0 ? stretch<Vec, kRows, 4, true>(g, w, b, begin, end, kept) : stretch<Vec, kRows, 4, false>(g, w, b + n, begin, end, from(n));
  }
  switch (batch - n) {
    case 3: return stretch<Vec, kRows, 3, true>(g, w, b + n, begin, end, from(n));
    case 2: return stretch<Vec, kRows, 2, true>(g, w, b + n, begin, end, from(n));
    case 1: return stretch<Vec, kRows, 1, true>(g, w, b + n, begin, end, from(n));
    default: return;
  }
}

// Rows row .. last - 1 (at most kChunk) times vectors b .. b + batch - 1.
template <class Vec, class Weight>
void chunk(const Gemv& g, int64_t row, int64_t last, int64_t b, int64_t batch) {
  float kept[kChunk][kTogether][Vec::kWidth] = {};
  const Weight* w = static_cast<const Weight*>(g.weight) + row * g.in;
  for (int64_t begin = 0; begin < g.in; begin += kStretch) {
    const int64_t end = begin + kStretch < g.in ? begin + kStretch : g.in;
    int64_t r = 0;
    for (; r + 3 <= last - row; r += 3) stretches<Vec, 3>(g, w + r * g.in, b, batch, begin, end, kept + r);
    for (; r < last - row; ++r) stretches<Vec, 1>(g, w + r * g.in, b, batch, begin, end, kept + r);
  }
  for (int64_t r = 0; r < last - row; ++r) {
    for (int64_t n = 0; n < batch; ++n) {
      g.y[(b + n) * g.out + row + r] = Vec::sum(Vec::load(kept[r][n])) + (g.bias == nullptr ? 0.0F : g.bias[row + r]);
    }
  }
}

template <class Vec, class Weight>
void gemv_typed(const Gemv& g, int64_t begin, int64_t end) {
  int64_t row = begin;
  if (g.batch == 1) {
    for (; row + 8 <= end; row += 8) rows_of_one<Vec, 8, Weight>(g, row);
    for (; row < end; ++row) rows_of_one<Vec, 1, Weight>(g, row);
    return;
  }
  for (; row < end; row += kChunk) {
    const int64_t last = row + kChunk < end ? row + kChunk : end;
    for (int64_t b = 0; b < g.batch; b += kTogether) chunk<Vec, Weight>(g, row, last, b, g.batch - b < kTogether ? g.batch - b : kTogether);
  }
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
