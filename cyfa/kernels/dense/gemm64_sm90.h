// Products of up to 64 rows with a bf16 weight matrix on Hopper, for decoding. They are bound by reading the weights and by launch latency,
// so the norm before a projection and the activation or residual sum after it are fused. Called by the decode step of cyfa/engine/sm90.
// Writes y and, with kAdd, `next`. No torch, no allocation. Arrays are in device memory, aligned to 16 bytes.
//
// An RMSNorm is split over two launches. The launch that produces a row x also writes x times the norm's weight, in bf16, and partial sums
// of squares of x. The launch that consumes the norm multiplies its results by the row's 1 / rms. So TMA loads the operand directly,
// without a pass through registers.
//
// Hazard: these kernels use programmatic dependent launch and read their weights (matrix and next_weight), and nothing else, before
// griddepcontrol.wait. The weights must have been written before the last launch on the stream that did not use programmatic dependent
// launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::dense {

constexpr int64_t kMaxGemm64Rows = 64;

// What happens to the products.
enum class Gemm64Output {
  kStore,   // bf16, plus the bias if there is one
  kAdd,     // added to y, bf16; also written to `next` for the norm that follows
  kSwiglu,  // silu(g) u, bf16; the weights are [2 out, in]: the rows of g, then those of u
};

// A row x as the input of an RMSNorm that a later launch completes.
struct Normable {
  void* scaled = nullptr;    // bf16 [rows, width]: x times the norm's weight
  float* squares = nullptr;  // [parts, 64]: sums of squares of x, each over a part of the columns
  int64_t parts = 0;
};

// Arguments of gemm64_cuda.
struct Gemm64 {
  Gemm64Output output = Gemm64Output::kStore;
  int64_t rows = 0, in = 0, out = 0;
  const void* weight = nullptr;  // bf16 [out, in]
  const void* x = nullptr;       // bf16 [rows, in], with x_stride elements between rows
  int64_t x_stride = 0;
  const float* squares = nullptr;  // x is the `scaled` of a Normable and these are its squares, [parts, 64]; null: no norm
  int64_t parts = 0;
  float eps = 0;                       // of the norm
  const void* bias = nullptr;          // kStore: bf16 [out]; null: none
  void* y = nullptr;                   // bf16 [rows, out]
  const float* next_weight = nullptr;  // kAdd: [out], weight of the next norm
  Normable next;                       // kAdd: x after the sum, for the next norm
};

// Number of parts of the squares that a launch with kAdd writes to `next`.
int64_t gemm64_parts(int64_t in, int64_t out);
// Why there is no kernel for this product, in words for the user; null if there is one. There is for at most 64 rows, `in` a multiple of
// 64, `out` a multiple of 8, at most 64 parts, and panels that fit in shared memory.
const char* gemm64_refusal(const Gemm64& p);
// y = product of x (or its norm) and the weights, as p.output says. Sums are in fp32, in an order that depends on `in` and `output` only: a
// row gives the same bits in any batch. Returns cudaErrorInvalidValue for sizes that gemm64_refusal refuses.
cudaError_t gemm64_cuda(const Gemm64& p, cudaStream_t stream);

// Writes the Normable, with one part, of rows x [rows, width] that no launch above has produced, such as embeddings. The width is a
// multiple of 8.
cudaError_t gemm64_begin(const void* x, int64_t rows, int64_t width, const float* weight, const Normable& out, cudaStream_t stream);

}  // namespace cyfa::dense
