// A weight matrix times a few vectors on a CPU, for decoding: the time is that of reading the weights once. Called by ops::linear_steps,
// which splits the rows over threads. Overwrites columns begin .. end - 1 of y. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

#include "cyfa/kernels/cpu/isa.h"

namespace cyfa::dense {

enum class WeightType { kF32, kBf16 };

// Arguments of gemv_cpu. All arrays are contiguous.
struct Gemv {
  int64_t batch = 0, in = 0, out = 0;
  const void* weight = nullptr;  // [out, in], fp32 or bf16 as `type` says
  WeightType type = WeightType::kF32;
  const float* x = nullptr;     // the vectors in the layout of interleave_vectors
  const float* bias = nullptr;  // [out] or null
  float* y = nullptr;           // [batch, out]
};

// Layout of x for gemv_cpu: vectors x [batch, in] become [ceil(in / 16), batch, 16], padded with zeros. With the vectors one after another,
// the same columns of vectors whose length is a multiple of 1,024 would map to the same few cache sets.
inline constexpr int64_t kInterleave = 16;
// Number of floats that interleave_vectors writes.
inline int64_t interleaved_floats(int64_t batch, int64_t in) { return (in + kInterleave - 1) / kInterleave * kInterleave * batch; }
void interleave_vectors(int64_t batch, int64_t in, const float* x, float* interleaved);

// y[b, r] = <weight[r], x[b]> + bias[r] for rows begin .. end - 1 of the weights. The order of summation depends on `in` and `isa` only, so
// a vector gives the same bits in any batch and for any split of the rows. Throws std::invalid_argument for an unavailable `isa` or a row
// range outside 0 .. out.
void gemv_cpu(const Gemv& g, int64_t begin, int64_t end, cpu::Isa isa);

}  // namespace cyfa::dense
