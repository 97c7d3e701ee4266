// Row-wise CUDA kernels around a mixer's operator, forward and backward, each in one sweep over its tensors: RMSNorm (with a sigmoid gate
// or a residual sum before it), SwiGLU, the short convolution, gates, and the loss of logits. Called by ops/dense/rowwise_cuda.cc and
// cyfa/engine/sm90. Activations are fp32 or bf16; sums and weights are fp32. No torch, no allocation, no atomics: equal calls give equal
// bits. Arrays are in device memory, aligned to 16 bytes, and contiguous unless a stride is named (in elements, a multiple of 8). Functions
// enqueue on `stream`, write only to the non-const arrays of their argument, and return the status of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::rowwise {

// Type of the activations.
enum class RowType { kFloat32, kBFloat16 };

// Whether norm_cuda supports rows of this width: a multiple of 8, at most 2,048.
bool norm_cuda_takes(int64_t width);

// A weight's gradient is summed in this many parts on every machine, so that equal calls give equal bits. 264 is two blocks on each of an
// H200's 132 SMs.
constexpr int64_t kNormParts = 264;

// Up to kSums column sums in one launch: to[c] = sum over i < count of parts[i * stride + c], for c < columns, in a fixed order.
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
  bool add = false;  // add to `to` instead of overwriting it

  // Appends a sum. There must be fewer than kSums.
  void more(const float* parts, int64_t count, int64_t stride, float* to, int64_t columns) {
    sum[sums++] = {parts, count, stride, to, columns};
  }
};
// Computes p.sum[0 .. p.sums - 1].
cudaError_t sum_parts_cuda(const SumParts& p, cudaStream_t stream);

// Arguments of norm_cuda (forward) and norm_backward_cuda.
struct NormCuda {
  RowType type = RowType::kFloat32;
  int64_t rows = 0, width = 0;
  const void* x = nullptr;        // [rows, width]; backward: the normalised tensor, x + plus if there was a plus
  const void* plus = nullptr;     // [rows, width]: norm of x + plus, which is written to `sum`; null: of x. Not together with a gate
  const float* weight = nullptr;  // [width]
  const void* gate = nullptr;     // [rows, width]; null: no gate
  float eps = 0;
  float* rate = nullptr;             // [rows]: 1 / rms, written by forward and read by backward
  void* sum = nullptr;               // [rows, width], forward: x + plus
  void* out = nullptr;               // [rows, width], forward
  const void* grad = nullptr;        // [rows, width]; this and all below: backward
  const void* grad_sum = nullptr;    // [rows, width]: gradient of `sum`, added to grad_x; null: none. Not together with a gate
  void* grad_x = nullptr;            // [rows, width]
  void* grad_gate = nullptr;         // [rows, width], if there is a gate
  float* weight_parts = nullptr;     // [kNormParts, width]: their sum is the weight's gradient
  int64_t heads = 1;                 // row r belongs to head r % heads of the gate's bias
  float* gate_bias_parts = nullptr;  // [kNormParts, heads * width]: their sum is that bias's gradient; null: not computed
};

// Whether norm_backward_cuda can compute gate_bias_parts for this many heads.
bool norm_cuda_sums_gate_bias(int64_t width, int64_t heads);

// out = x rate weight, times sigmoid(gate) if there is one, with rate = 1 / sqrt(mean(x^2) + eps). Both return cudaErrorInvalidValue for
// unsupported widths. With `plus` and at most 512 rows norm_cuda uses programmatic dependent launch.
cudaError_t norm_cuda(const NormCuda& p, cudaStream_t stream);
cudaError_t norm_backward_cuda(const NormCuda& p, cudaStream_t stream);

// out = silu(gate) up and its backward, which writes out as well if it is given. Rows [rows, width] of gate, up and their gradients are
// `stride` elements apart; out and grad are contiguous. The width is a multiple of 8.
struct SwigluCuda {
  RowType type = RowType::kFloat32;
  int64_t rows = 0, width = 0, stride = 0;
  const void* gate = nullptr;
  const void* up = nullptr;  // null: silu(gate)
  void* out = nullptr;
  const void* grad = nullptr;  // this and all below: backward
  void* grad_gate = nullptr;
  void* grad_up = nullptr;
};
cudaError_t swiglu_cuda(const SwigluCuda& p, cudaStream_t stream);
cudaError_t swiglu_backward_cuda(const SwigluCuda& p, cudaStream_t stream);

// Whether conv_cuda supports this width (a multiple of 8) and number of taps (2 to 4).
bool conv_cuda_takes(int64_t width, int64_t taps);

constexpr int64_t kConvTokens = 256;  // largest number of tokens of a task

// Tokens of one sequence that a thread block processes.
struct ConvTask {
  int64_t begin, end;   // rows of x
  int64_t first, last;  // the rows of the sequence
  int64_t sequence;     // index of the sequence
};

// One causal depthwise convolution over `width` columns of x. x may be part of a wider row, such as a fused projection's output.
struct ConvInput {
  int64_t width = 0;
  const void* x = nullptr;        // [tokens, width], row stride ConvCuda::x_stride
  const float* weight = nullptr;  // [width, taps], the newest token's tap last
  const float* bias = nullptr;    // [width] or null
  const void* before = nullptr;   // [sequences, taps - 1, width]: the rows before each sequence, oldest first; null: zeros
  void* y = nullptr;              // [tokens, width], forward
  const void* grad = nullptr;     // [tokens, width], backward
  void* grad_x = nullptr;         // [tokens, width], row stride ConvCuda::x_stride, backward
};

// Arguments of conv_cuda and conv_backward_cuda: up to kInputs convolutions over the same tokens.
struct ConvCuda {
  static constexpr int kInputs = 3;
  RowType type = RowType::kFloat32;
  int64_t taps = 0, task_count = 0, x_stride = 0;
  const ConvTask* tasks = nullptr;  // [task_count], in device memory
  int inputs = 1;
  ConvInput input[kInputs];
  // Backward: a row of partial gradients per task, with each input's weight [width, taps] and then, if bias_parts, each input's bias
  // [width]. sum_parts_cuda adds the rows.
  float* parts = nullptr;  // [task_count, conv_parts_columns]
  bool bias_parts = false;
};
// Columns of ConvCuda::parts.
int64_t conv_parts_columns(const ConvCuda& p);

// Forward writes each input's y; backward writes each grad_x and the parts.
cudaError_t conv_cuda(const ConvCuda& p, cudaStream_t stream);
cudaError_t conv_backward_cuda(const ConvCuda& p, cudaStream_t stream);

// One decode step of up to kInputs convolutions: one token for each of `batch` sequences. Shifts x into `state`.
struct ConvStepInput {
  int64_t width = 0;
  const void* x = nullptr;        // [batch, width], row stride ConvStepCuda::x_stride
  const float* weight = nullptr;  // [width, taps], the newest token's tap last
  const float* bias = nullptr;    // [width] or null
  float* state = nullptr;         // [batch, taps - 1, width], oldest first, updated in place
  void* y = nullptr;              // [batch, width]
};
// Arguments of conv_step_cuda.
struct ConvStepCuda {
  RowType type = RowType::kFloat32;  // of x and y
  int64_t batch = 0, taps = 0, x_stride = 0;
  int inputs = 1;
  ConvStepInput input[ConvCuda::kInputs];
};
// Whether the batch fits in the grid.
bool conv_step_cuda_takes(int64_t batch);
cudaError_t conv_step_cuda(const ConvStepCuda& p, cudaStream_t stream);

// The last taps - 1 rows of each sequence, from which a decode step continues the convolution. Rows before a sequence's first token come
// from `before`.
struct ConvTail {
  int64_t width = 0;
  const void* x = nullptr;        // [tokens, width], row stride ConvTailsCuda::x_stride
  const float* before = nullptr;  // [sequences, taps - 1, width], oldest first; null: zeros
  float* to = nullptr;            // the same
};
// Arguments of conv_tails_cuda.
struct ConvTailsCuda {
  RowType type = RowType::kFloat32;  // of x
  int64_t sequences = 0, taps = 0, x_stride = 0;
  const int64_t* borders = nullptr;  // [sequences + 1], in device memory: sequence n is rows borders[n] .. borders[n + 1] - 1
  int inputs = 1;
  ConvTail input[ConvCuda::kInputs];
};
cudaError_t conv_tails_cuda(const ConvTailsCuda& p, cudaStream_t stream);

// Gates of a mixer with a forget gate and a clock: log_alpha = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b + b_bias), delta =
// sigmoid(d + d_bias). a, b and d are adjacent groups of `heads` columns in the rows of x.
constexpr int64_t kGateParts = 128;     // parts of a bias gradient's sum, as for kNormParts
constexpr int64_t kMaxGateHeads = 256;  // of gates_backward_cuda

// Arguments of gates_cuda and gates_backward_cuda.
struct GatesCuda {
  RowType type = RowType::kFloat32;
  int64_t rows = 0, heads = 0, stride = 0;
  const void* x = nullptr;                                                                 // [rows, 3 heads], row stride `stride`
  const float *dt_bias = nullptr, *A_log = nullptr, *b_bias = nullptr, *d_bias = nullptr;  // [heads]
  float *log_alpha = nullptr, *beta = nullptr, *delta = nullptr;                           // [rows, heads], forward
  const float *grad_log_alpha = nullptr, *grad_beta = nullptr, *grad_delta = nullptr;      // backward; null: zeros
  void* grad_x = nullptr;                                                                  // [rows, 3 heads + fill], row stride `stride`
  int64_t fill = 0;        // padding columns after d that backward sets to zero
  float* parts = nullptr;  // [kGateParts, 4 heads]: gradients of dt_bias, A_log, b_bias, d_bias
};
cudaError_t gates_cuda(const GatesCuda& p, cudaStream_t stream);
cudaError_t gates_backward_cuda(const GatesCuda& p, cudaStream_t stream);

// Cross entropy: loss[row] = -log softmax(logits[row])[target]. A target equal to `ignore` is ignored: its loss is 0. Any other outside of
// 0 .. width - 1 gives NaN. With `share`, the logits are overwritten by their gradient (softmax - one_hot(target)) * share, and by zeros in
// ignored rows.
struct LossCuda {
  RowType type = RowType::kFloat32;
  int64_t rows = 0, width = 0;       // width: a multiple of 8
  void* logits = nullptr;            // [rows, width]
  const int64_t* targets = nullptr;  // [rows]
  int64_t ignore = -1;
  const float* share = nullptr;  // [1], in device memory: factor of the gradient, 1 / number of targets for a mean; null: no gradient
  float* loss = nullptr;         // [rows]
};
cudaError_t loss_cuda(const LossCuda& p, cudaStream_t stream);

}  // namespace cyfa::rowwise
