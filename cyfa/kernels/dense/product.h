// Products of small fp32 matrices on one CPU core, a few hundred rows and columns: those of one chunk of a chunk-wise recurrence, whose
// operands stay in the core's cache. Called by cyclic_flow/cpu/cpu_chunks.cc. Overwrites c. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

#include "cyfa/kernels/cpu/isa.h"

namespace cyfa::dense {

// Element (i, j) is data[i * row + j * column]; row or column is 1.
struct MatrixView {
  const float* data = nullptr;
  int64_t row = 0, column = 1;

  MatrixView transposed() const { return {data, column, row}; }
};

// What is known to be zero, or not wanted. "Lower" means on and below the diagonal.
enum class Triangle {
  kNone,
  kLowerResult,  // only the lower part of c is wanted; whether the rest is written is not specified
  kLowerLeft,    // a is lower triangular; numbers above its diagonal may be read and must be zero
  kUpperLeft,    // a is upper triangular; numbers below its diagonal may be read and must be zero
};

// c = a b + keep * base for a [m, k], b [k, n] and rows of c and base at a distance of c_row. With keep = 0, base is not read. base may be
// c.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  MatrixView a, b;
  float* c = nullptr;
  int64_t c_row = 0;
  float keep = 0;
  const float* base = nullptr;
  Triangle triangle = Triangle::kNone;
};

// An element is summed in the order of k, in stretches of 64, so its bits depend on its row of a, its column of b and `isa`, and on nothing
// else: not on m or n, and not on rows and columns beside it. Throws std::invalid_argument if `isa` is not available on this CPU.
void product(const Product& p, cpu::Isa isa);

// to [columns, rows] = from [rows, columns] transposed; both contiguous.
void transpose(int64_t rows, int64_t columns, const float* from, float* to, cpu::Isa isa);

}  // namespace cyfa::dense
