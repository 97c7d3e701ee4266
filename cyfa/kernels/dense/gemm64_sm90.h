// Products of up to 64 rows with bf16 weights on Hopper, for decoding: bound by the reading of the weights and by the chain of launches,
// with what stands before and behind a projection in the same launch. No torch, no allocation. Arrays in device memory, aligned to 16
// bytes.
//
// A norm is parted in two: the launch that makes a row x also writes x times the norm's weight, in bf16, and sums of squares of x; the one
// that takes the norm multiplies its results by the row's rate. So inputs come by copies that pass no thread.
//
// A launch reads its weights, and nothing else, while launches before it still run: they must have been written before the last one that
// did not begin early.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::dense {

constexpr int64_t kMaxGemm64Rows = 64;

enum class Gemm64Output {
  kStore,   // bf16, a bias added if there is one
  kAdd,     // added to what is there, bf16, which is also prepared for the next norm
  kSwiglu,  // silu(g) u, bf16, of weights [2 out, in]: rows of g, then of u
};

// Rows before a norm.
struct Normable {
  void* scaled = nullptr;    // bf16 [rows, width]: x times the norm's weight
  float* squares = nullptr;  // [parts, 64]: of x, summed over its columns in parts
  int64_t parts = 0;
};

struct Gemm64 {
  Gemm64Output output = Gemm64Output::kStore;
  int64_t rows = 0, in = 0, out = 0;
  const void* weight = nullptr;  // bf16 [out, in]
  const void* x = nullptr;       // bf16 [rows, in], x_stride elements between rows
  int64_t x_stride = 0;
  const float* squares = nullptr;  // x is the `scaled` of a Normable, and these its squares; null: x as it is
  int64_t parts = 0;
  float eps = 0;
  const void* bias = nullptr;          // bf16 [out], of kStore; null: none
  void* y = nullptr;                   // [rows, out]
  const float* next_weight = nullptr;  // of kAdd: [out], of the next norm
  Normable next;                       // of kAdd
};

// Of the squares that a launch with kAdd writes.
int64_t gemm64_parts(int64_t in, int64_t out);
bool gemm64_takes(const Gemm64& p);
// Sums are in fp32, in an order that `in` and `output` alone fix: a row gives the same bits in any batch.
cudaError_t gemm64_cuda(const Gemm64& p, cudaStream_t stream);

// The same Normable, of one part, of rows x [rows, width] that no launch above has made; width a multiple of 8.
cudaError_t gemm64_begin(const void* x, int64_t rows, int64_t width, const float* weight, const Normable& out, cudaStream_t stream);

}  // namespace cyfa::dense
