// Gates per dimension inside the chunks of a recurrence, on Hopper: alpha [chunks, C, K] in (0, 1], one gate for every token and every key
// (or value) dimension. D_ts denotes the vector alpha_{s+1} .. alpha_t inside a chunk. Called by cyfa/ops/recurrence/sm90_row_gates.cc.
// All arrays are fp32, contiguous, in device memory and aligned to 16 bytes; K is a multiple of 64, C is kWalkChunk. No torch, no
// allocation.
//
// Pairs (t, s) with s < t are grouped by the highest bit h in which t and s differ: t is in the second half of a block of 2 h tokens and s
// in the first. D_ts is the decay from the middle of the block to t times the decay from s to the middle, so that a level h is a matrix
// product, of operands rounded to bf16 with sums in fp32. Products of gates are never divided. Equal calls give equal bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cyfa::recurrence {

// Which gates multiply token t: alpha_1 .. alpha_t or alpha_{t+1} .. alpha_C.
enum class GateSide { kFromStart, kToEnd };

// out_t = gates x_t.
cudaError_t gated_sm90(GateSide side, int64_t chunks, int64_t K, const float* alpha, const float* x, float* out, cudaStream_t stream);

// Its adjoint: adds to grad_x and to grad_log, the gradient of log(alpha). `out` is the result.
cudaError_t gated_backward_sm90(GateSide side, int64_t chunks, int64_t K, const float* alpha, const float* grad, const float* out,
                                float* grad_x, float* grad_log, cudaStream_t stream);

// scores_ts = x_t^T D_ts y_s for s <= t, else 0, [chunks, C, C], for one or two x.
struct GatedScores {
  int64_t chunks = 0, K = 0;
  const float* alpha = nullptr;
  const float* x[2] = {};  // x[1] may be null
  const float* y = nullptr;
  float* scores[2] = {};
};
cudaError_t gated_scores_sm90(const GatedScores& p, cudaStream_t stream);

// The adjoint for one x: adds to grad_x (which may be null, or the same array as grad_y), grad_y and grad_log. Weights above the diagonal
// are not read.
struct GatedScoresGradient {
  int64_t chunks = 0, K = 0;
  const float* alpha = nullptr;
  const float* weights = nullptr;  // [chunks, C, C], the gradient of the scores
  const float* x = nullptr;
  const float* y = nullptr;
  float* grad_x = nullptr;
  float* grad_y = nullptr;
  float* grad_log = nullptr;
};
cudaError_t gated_scores_backward_sm90(const GatedScoresGradient& p, cudaStream_t stream);

// z_t = sum over s <= t of weights_ts D_ts y_s, [chunks, C, K].
cudaError_t gated_apply_sm90(int64_t chunks, int64_t K, const float* alpha, const float* weights, const float* y, float* z,
                             cudaStream_t stream);

}  // namespace cyfa::recurrence
