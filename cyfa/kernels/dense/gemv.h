// A weight matrix times a few vectors: decoding, where the weights are read once a token and everything else is small.
// No torch, no threads, no allocation. Called by ops::linear; overwrites rows begin .. end - 1 of y.
#pragma once

#include <cstdint>

#include "cyfa/kernels/cpu/isa.h"

namespace cyfa::dense {

enum class WeightType { kF32, kBf16 };

struct Gemv {
  int64_t batch = 0, in = 0, out = 0;
  const void* weight = nullptr;  // [out, in], rows one after another
  WeightType type = WeightType::kF32;
  const float* x = nullptr;     // the vectors, interleaved by interleave_vectors
  const float* bias = nullptr;  // [out] or null
  float* y = nullptr;           // [batch, out]
};

// Vectors x [batch, in] in the order in which gemv reads them, [ceil(in / 16), batch, 16] with zeros after the last: side by side, vectors
// of 1,024 numbers would all compete for the same few lines of the cache.
inline constexpr int64_t kInterleave = 16;
inline int64_t interleaved_floats(int64_t batch, int64_t in) { return (in + kInterleave - 1) / kInterleave * kInterleave * batch; }
void interleave_vectors(int64_t batch, int64_t in, const float* x, float* interleaved);

// y[b, r] = <weight[r], x[b]> + bias[r] for rows begin .. end - 1. The order of every sum depends on `in` and `isa` alone, so that a
// vector gives the same bits in any batch and in any split of the rows.
void gemv_cpu(const Gemv& g, int64_t begin, int64_t end, cpu::Isa isa);

}  // namespace cyfa::dense
