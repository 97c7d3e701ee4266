// The neighbours of a mixer's operator on a GPU, forward and backward, each one sweep over its tensors: RMSNorm with or without a sigmoid
// gate or the residual's sum before it, SwiGLU, the short convolution, gates, the loss of logits. Activations in fp32 or bf16, sums and
// weights in fp32. No torch, no allocation, no atomics. Arrays in device memory, aligned to 16 bytes, contiguous but where a stride is
// named (in elements, a multiple of 8). Functions queue on `stream` and return the launch's status.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::rowwise {

enum class RowType { kFloat32, kBFloat16 };

// Whether norm_cuda takes rows of this width.
bool norm_cuda_takes(int64_t width);

// Sums of a weight's gradient are made in so many parts, whatever the machine, so that equal calls give equal bits.
constexpr int64_t kNormParts = 264;

// Sums over rows of parts, in one order: of `count` rows at distance `stride`, `columns` columns.
struct SumParts {
  static constexpr int kSums = 10;
  struct Sum {
    const float* parts;
    int64_t count, stride;
    float* to;
    int64_t columns;
  };
  int sums = 0;
  Sum sum[kSums] = {};
  bool add = false;  // to what is there; else in its place

  void more(const float* parts, int64_t count, int64_t stride, float* to, int64_t columns) {
    sum[sums++] = {parts, count, stride, to, columns};
  }
};
cudaError_t sum_parts_cuda(const SumParts& p, cudaStream_t stream);

struct NormCuda {
  RowType type = RowType::kFloat32;
  int64_t rows = 0, width = 0;
  const void* x = nullptr;        // [rows, width]; backward: what was normalised
  const void* plus = nullptr;     // [rows, width]: x + plus is normalised, and written to `sum`; null: x alone. Without a gate
  const float* weight = nullptr;  // [width]
  const void* gate = nullptr;     // [rows, width]; null: no gate
  float eps = 0;
  float* rate = nullptr;             // [rows]: written by forward, read by backward
  void* sum = nullptr;               // [rows, width], forward, where there is a `plus`
  void* out = nullptr;               // [rows, width], forward
  const void* grad = nullptr;        // [rows, width], backward, as everything below
  const void* grad_sum = nullptr;    // [rows, width]: added to grad_x; null: nothing
  void* grad_x = nullptr;            // [rows, width]
  void* grad_gate = nullptr;         // [rows, width], where there is a gate
  float* weight_parts = nullptr;     // [kNormParts, width]: their sum is the weight's gradient
  int64_t heads = 1;                 // rows take turns with the heads of a gate's bias
  float* gate_bias_parts = nullptr;  // [kNormParts, heads * width]: their sum is that bias's gradient; null: not wanted
};

// Whether norm_backward_cuda gives gate_bias_parts of this many heads.
bool norm_cuda_sums_gate_bias(int64_t width, int64_t heads);

cudaError_t norm_cuda(const NormCuda& p, cudaStream_t stream);
cudaError_t norm_backward_cuda(const NormCuda& p, cudaStream_t stream);

// As rowwise::swiglu and rowwise::swiglu_backward: rows [rows, width] of gate and up, and of their gradients, at distance `stride`; out and
// grad are contiguous. The width is a multiple of 8.
struct SwigluCuda {
  RowType type = RowType::kFloat32;
  int64_t rows = 0, width = 0, stride = 0;
  const void* gate = nullptr;
  const void* up = nullptr;  // null: silu(gate)
  void* out = nullptr;
  const void* grad = nullptr;  // backward, as everything below
  void* grad_gate = nullptr;
  void* grad_up = nullptr;
};
cudaError_t swiglu_cuda(const SwigluCuda& p, cudaStream_t stream);
cudaError_t swiglu_backward_cuda(const SwigluCuda& p, cudaStream_t stream);

// Whether conv_cuda takes this width and number of taps.
bool conv_cuda_takes(int64_t width, int64_t taps);

constexpr int64_t kConvTokens = 256;  // of a task, at most

// Tokens of one sequence that a block takes.
struct ConvTask {
  int64_t begin, end;   // rows of x
  int64_t first, last;  // rows of its sequence
  int64_t sequence;
};

// Columns of x with a convolution of their own: as wide as they are, wherever they stand in a row.
struct ConvInput {
  int64_t width = 0;
  const void* x = nullptr;        // [tokens, width] at ConvCuda::x_stride
  const float* weight = nullptr;  // [width, taps], the newest token's tap last
  const float* bias = nullptr;    // [width] or null
  const void* before = nullptr;   // [sequences, taps - 1, width]: rows before each sequence's first, oldest first; null: zeros
  void* y = nullptr;              // [tokens, width], forward
  const void* grad = nullptr;     // [tokens, width], backward
  void* grad_x = nullptr;         // [tokens, width] at ConvCuda::x_stride, backward
};

struct ConvCuda {
  static constexpr int kInputs = 3;
  RowType type = RowType::kFloat32;
  int64_t taps = 0, task_count = 0, x_stride = 0;
  const ConvTask* tasks = nullptr;  // [task_count], in device memory
  int inputs = 1;
  ConvInput input[kInputs];
  // Backward. Rows of parts of the gradients: each input's weight [width, taps], then, if wanted, each input's bias [width].
  float* parts = nullptr;  // [task_count, conv_parts_columns]
  bool bias_parts = false;
};
int64_t conv_parts_columns(const ConvCuda& p);

cudaError_t conv_cuda(const ConvCuda& p, cudaStream_t stream);
cudaError_t conv_backward_cuda(const ConvCuda& p, cudaStream_t stream);

// One token of each of `batch` sequences; their pasts move on by it.
struct ConvStepInput {
  int64_t width = 0;
  const void* x = nullptr;        // [batch, width] at ConvStepCuda::x_stride
  const float* weight = nullptr;  // [width, taps], the newest token's tap last
  const float* bias = nullptr;    // [width] or null
  float* state = nullptr;         // [batch, taps - 1, width], the newest last
  void* y = nullptr;              // [batch, width]
};
struct ConvStepCuda {
  RowType type = RowType::kFloat32;  // of x and y
  int64_t batch = 0, taps = 0, x_stride = 0;
  int inputs = 1;
  ConvStepInput input[ConvCuda::kInputs];
};
bool conv_step_cuda_takes(int64_t batch);
cudaError_t conv_step_cuda(const ConvStepCuda& p, cudaStream_t stream);

// Gates of a mixer with forgetting and a clock: log_alpha = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b + b_bias),
// delta = sigmoid(d + d_bias), of columns a, b, d that stand side by side in rows of x.
constexpr int64_t kGateParts = 128;
constexpr int64_t kMaxGateHeads = 256;

struct GatesCuda {
  RowType type = RowType::kFloat32;
  int64_t rows = 0, heads = 0, stride = 0;
  const void* x = nullptr;                                                                 // [rows, 3 heads] at `stride`
  const float *dt_bias = nullptr, *A_log = nullptr, *b_bias = nullptr, *d_bias = nullptr;  // [heads]
  float *log_alpha = nullptr, *beta = nullptr, *delta = nullptr;                           // [rows, heads], forward
  const float *grad_log_alpha = nullptr, *grad_beta = nullptr, *grad_delta = nullptr;      // backward; null: zeros
  void* grad_x = nullptr;                                                                  // [rows, 3 heads + fill] at `stride`
  int64_t fill = 0;                                                                        // columns behind d's that are set to zero
  float* parts = nullptr;  // [kGateParts, 4 heads]: gradients of dt_bias, A_log, b_bias, d_bias
};
cudaError_t gates_cuda(const GatesCuda& p, cudaStream_t stream);
cudaError_t gates_backward_cuda(const GatesCuda& p, cudaStream_t stream);

// loss[row] = -log softmax(logits[row])[target], 0 for targets below 0, NaN for those there are no logits of. With `share`, logits become
// (softmax - one at the target) * share, or zeros where nothing counts.
struct LossCuda {
  RowType type = RowType::kFloat32;
  int64_t rows = 0, width = 0;       // width: a multiple of 8
  void* logits = nullptr;            // [rows, width]
  const int64_t* targets = nullptr;  // [rows]
  const float* share = nullptr;      // [1], in device memory; null: logits stay as they are
  float* loss = nullptr;             // [rows]
};
cudaError_t loss_cuda(const LossCuda& p, cudaStream_t stream);

}  // namespace cyfa::rowwise
