// Products of up to 16 rows with a bf16 weight matrix on Hopper, for decoding. They are bound by reading the weights; norms and gates
// before the projection and the activation or residual sum after it are fused. Called by the decode step of cyfa/engine/sm90. Writes y
// only. No torch, no allocation. Arrays are in device memory, contiguous, aligned to 16 bytes.
//
// Hazard: these kernels use programmatic dependent launch and read their weights (matrix and norm_weight), and nothing else, before
// griddepcontrol.wait. The weights must have been written before the last launch on the stream that did not use programmatic dependent
// launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::dense {

constexpr int64_t kMaxGemvRows = 16;  // 8 for wide rows: see gemv_refusal

// What multiplies the weights.
enum class GemvInput {
  kPlain,      // x
  kNorm,       // RMSNorm of x
  kGatedNorm,  // RMSNorm over each run of `width` columns of x, times sigmoid(gate)
};
// What happens to the products.
enum class GemvOutput {
  kStore,   // bf16
  kFloat,   // fp32
  kAdd,     // added to y, bf16
  kSwiglu,  // silu(g) u, bf16; the weights are [2 out, in]: the rows of g, then those of u. Needs kNorm
};

// Arguments of gemv_cuda.
struct GemvCuda {
  GemvInput input = GemvInput::kPlain;
  GemvOutput output = GemvOutput::kStore;
  int64_t rows = 0, in = 0, out = 0;
  const void* weight = nullptr;        // bf16 [out, in]
  const void* x = nullptr;             // bf16 [rows, in]
  const void* gate = nullptr;          // bf16 [rows, in]
  const float* norm_weight = nullptr;  // [width]
  int64_t width = 0;                   // columns of a norm: `in`; with a gate a power of two from 8 to 256 that divides `in`
  float eps = 0;
  void* y = nullptr;            // [rows, out]
  const void* ahead = nullptr;  // weights of later launches to prefetch into the L2 cache; null: none
  int64_t ahead_bytes = 0;      // a multiple of 16
};

// Why there is no kernel for these sizes, in words for the user; null if there is one. `in` is a multiple of 32, at most 6,144 (2,048 with
// a norm); half of that for more than 8 rows.
const char* gemv_refusal(const GemvCuda& p);
// y = product of p.input and the weights, as p.output says. Sums are in fp32, in an order that depends on `in` and `input` only: a row
// gives the same bits in any batch. Returns cudaErrorInvalidValue for sizes that gemv_refusal refuses.
cudaError_t gemv_cuda(const GemvCuda& p, cudaStream_t stream);

}  // namespace cyfa::dense
