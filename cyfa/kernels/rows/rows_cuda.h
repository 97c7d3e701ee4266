// The neighbours of a mixer's operator on a GPU, forward and backward, each one sweep over its tensors: RMSNorm with or without a sigmoid
// gate, SwiGLU, the short convolution. Activations in fp32 or bf16, sums and weights in fp32. No torch, no allocation, no atomics.
// Contiguous arrays in device memory, aligned to 16 bytes. Functions queue on `stream` and return the launch's status.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::rows {

enum class RowType { kFloat32, kBFloat16 };

// Whether norm_cuda takes rows of this width.
bool norm_cuda_takes(int64_t width);

// Sums of a weight's gradient are made in so many parts, whatever the machine, so that equal calls give equal bits.
constexpr int64_t kNormParts = 264;

struct NormCuda {
  RowType type = RowType::kFloat32;
  int64_t rows = 0, width = 0;
  const void* x = nullptr;        // [rows, width]
  const float* weight = nullptr;  // [width]
  const void* gate = nullptr;     // [rows, width]; null: no gate
  float eps = 0;
  float* rate = nullptr;          // [rows]: written by forward, read by backward
  void* out = nullptr;            // [rows, width], forward
  const void* grad = nullptr;     // [rows, width], backward, as everything below
  void* grad_x = nullptr;         // [rows, width]
  void* grad_gate = nullptr;      // [rows, width], where there is a gate
  float* weight_parts = nullptr;  // [kNormParts, width]: their sum is the weight's gradient
};

cudaError_t norm_cuda(const NormCuda& p, cudaStream_t stream);
cudaError_t norm_backward_cuda(const NormCuda& p, cudaStream_t stream);

// As rows::swiglu and rows::swiglu_backward; count is a multiple of 8.
cudaError_t swiglu_cuda(RowType type, int64_t count, const void* gate, const void* up, void* out, cudaStream_t stream);
cudaError_t swiglu_backward_cuda(RowType type, int64_t count, const void* gate, const void* up, const void* grad, void* grad_gate,
                                 void* grad_up, cudaStream_t stream);

// Whether conv_cuda takes this width and number of taps.
bool conv_cuda_takes(int64_t width, int64_t taps);

constexpr int64_t kConvTokens = 64;  // of a task, at most

// Tokens of one sequence that a task walks through.
struct ConvTask {
  int64_t begin, end;   // rows of x
  int64_t first, last;  // rows of its sequence
  int64_t sequence;
};

struct ConvCuda {
  RowType type = RowType::kFloat32;
  int64_t width = 0, taps = 0, task_count = 0;
  const ConvTask* tasks = nullptr;  // [task_count], in device memory
  const void* x = nullptr;          // [tokens, width]
  const float* weight = nullptr;    // [width, taps], the newest token's tap last
  const float* bias = nullptr;      // [width] or null
  const void* before = nullptr;     // [sequences, taps - 1, width]: rows before each sequence's first, oldest first; null: zeros
  void* y = nullptr;                // [tokens, width], forward
  const void* grad = nullptr;       // [tokens, width], backward, as everything below
  void* grad_x = nullptr;           // [tokens, width]
  float* weight_parts = nullptr;    // [task_count, taps + 1, width]: parts of the weight's gradient by tap, then of the bias's
};

cudaError_t conv_cuda(const ConvCuda& p, cudaStream_t stream);
cudaError_t conv_backward_cuda(const ConvCuda& p, cudaStream_t stream);

}  // namespace cyfa::rows
