// One token of the short convolution on a GPU, in one launch: y = bias + sum of weight[w] x[t - w], and the past moves on by one token.
// No torch, no allocation. Queues on `stream` and returns the launch's status.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::rows {

struct ConvStepCuda {
  bool narrow_rows = false;     // x and y are bf16, else fp32
  bool narrow_weights = false;  // weight and bias are bf16, else fp32
  int batch = 0, width = 0, taps = 0;
  const void* x = nullptr;       // [batch, width]
  const void* weight = nullptr;  // [width, taps], the newest token's last
  const void* bias = nullptr;    // [width] or null
  float* state = nullptr;        // [batch, taps - 1, width], the newest last
  void* y = nullptr;             // [batch, width]
};
cudaError_t conv_step_cuda(const ConvStepCuda& p, cudaStream_t stream);

}  // namespace cyfa::rows
