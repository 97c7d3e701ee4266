// Products of a few rows with bf16 weights on Hopper, for decoding: bound by the reading of the weights, with what stands before and behind
// a projection in the same launch. No torch, no allocation. Arrays in device memory, contiguous, aligned to 16 bytes.
//
// A launch reads its weights, and nothing else, while launches before it still run: they must have been written before the last one that
// did not begin early.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::dense {

constexpr int64_t kMaxGemvRows = 16;  // 8 where a row is wide: see gemv_cuda_takes

enum class GemvInput {
  kPlain,      // x
  kNorm,       // RMSNorm of x
  kGatedNorm,  // RMSNorm of each run of `width` elements of x, times sigmoid(gate)
};
enum class GemvOutput {
  kStore,   // bf16
  kFloat,   // fp32
  kAdd,     // added to what is there, bf16
  kSwiglu,  // silu(g) u, bf16, of weights [2 out, in]: rows of g, then of u
};

struct GemvCuda {
  GemvInput input = GemvInput::kPlain;
  GemvOutput output = GemvOutput::kStore;
  int64_t rows = 0, in = 0, out = 0;
  const void* weight = nullptr;        // bf16 [out, in]
  const void* x = nullptr;             // bf16 [rows, in]
  const void* gate = nullptr;          // bf16 [rows, in]
  const float* norm_weight = nullptr;  // [width]
  int64_t width = 0;                   // of a norm: `in`, or with a gate a power of two from 8 to 256 of which that is a multiple
  float eps = 0;
  void* y = nullptr;            // [rows, out]
  const void* ahead = nullptr;  // weights of later launches, brought to the L2 cache meanwhile: a multiple of 16 bytes; null: none
  int64_t ahead_bytes = 0;
};

bool gemv_cuda_takes(const GemvCuda& p);
// Sums are in fp32, in an order that `in` and `input` alone fix: a row gives the same bits alone and among others.
cudaError_t gemv_cuda(const GemvCuda& p, cudaStream_t stream);

}  // namespace cyfa::dense
