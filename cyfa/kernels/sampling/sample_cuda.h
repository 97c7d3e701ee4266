// Sampling on a GPU: one thread block per sequence chooses the next token by the arithmetic of sampling.h. Called by
// cyfa/decode/batch_sampler.cc. No torch, no allocation; shared-memory atomics add integers only, so equal calls give equal bits.
#pragma once

#include <cuda_runtime_api.h>

#include "cyfa/kernels/sampling/sampling.h"

namespace cyfa::sampling {

// Arguments of sample_cuda. Arrays are in device memory; `drawn` may be in pinned host memory.
struct SampleCuda {
  Rule rule;
  int64_t rows = 0, vocab = 0;    // vocab below 2^24
  const float* logits = nullptr;  // [rows, vocab]
  int64_t* ids = nullptr;         // [rows]: receives the token, or 0 if no logit is finite, so that a step can always take it
  int64_t* drawn = nullptr;       // [rows]: receives the token, or -1 if the largest logit is not finite
  uint64_t* positions = nullptr;  // [rows]: the position of the token to draw; incremented
  uint8_t* seen = nullptr;        // [rows, vocab]: tokens that have occurred, marked with the drawn one; null if there is no penalty
};

// Enqueues on `stream` and returns the status of the launch.
cudaError_t sample_cuda(const SampleCuda& p, cudaStream_t stream);

}  // namespace cyfa::sampling
