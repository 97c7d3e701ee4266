// Matrices in fp8 with one scale each, for the products of training (cyfa/engine/sm90/fp8_products.cc): the largest absolute value of a
// bf16 matrix, and the matrix converted by the scale that follows from it, row by row and transposed, in one sweep. No torch, no
// allocation, no atomics: equal calls give equal bits. Functions enqueue on `stream`, write only to the non-const arrays of their argument,
// and return the status of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::fp8 {

// e4m3 (largest number 448, no infinity) or e5m2 (57,344).
enum class Format { kE4M3, kE5M2 };

// Rows of the results are filled with zeros to a multiple of this many elements, which the tensor cores' products demand.
constexpr int64_t kFill = 16;
__host__ __device__ constexpr int64_t filled(int64_t count) { return (count + kFill - 1) / kFill * kFill; }

// The maximum is left in this many parts. 528 is four blocks on each of an H200's 132 SMs.
constexpr int kParts = 528;

// Arguments of largest_cuda and cast_cuda. The scale is the largest power of two by which the largest absolute value stays in the format's
// range, so that the only rounding is the format's own and nothing saturates; 1 for a matrix of zeros. A matrix with an element that is not
// finite has the scale NaN, and all codes are NaN.
struct CastCuda {
  Format format = Format::kE4M3;
  int64_t rows = 0, width = 0, stride = 0;  // of x, in elements; width and stride are multiples of 8
  const void* x = nullptr;                  // [rows, width], bf16, aligned to 16 bytes
  uint32_t* parts = nullptr;                // [kParts]: written by largest_cuda, read by cast_cuda
  void* codes = nullptr;                    // [rows, filled(width)]; null: not written
  void* transposed = nullptr;               // [width, filled(rows)]; null: not written
  int64_t transposed_rows = 0;              // rows of x from here on are zeros in `transposed`
  float* inverse = nullptr;                 // [1]: 1 / scale
};

// Both return cudaErrorInvalidValue for an x that is not aligned. Without rows or columns nothing is written.
cudaError_t largest_cuda(const CastCuda& p, cudaStream_t stream);
cudaError_t cast_cuda(const CastCuda& p, cudaStream_t stream);

}  // namespace cyfa::fp8
