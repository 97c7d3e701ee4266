// A decoding step of up to 64 sequences: six launches a layer, with products on the tensor cores' tiles of 64 rows
// (cyfa/kernels/dense/gemm64_sm90.h). The rules for weights, states and reasons are those of small_batch.h.
//
// A norm is split over two launches: the one that adds to the residual stream also writes x times the norm's weight and sums of its
// squares, and the next one scales its results by the row's rate. A row has the same bits in any batch of this kind.
#pragma once

#include "cyfa/engine/sm90/small_batch.h"

namespace cyfa::fused {

// The residual stream, ready for its next norm.
struct NormedRows {
  at::Tensor x;                // bf16 [B, D]
  at::Tensor scaled, squares;  // bf16 [B, D], x times the next norm's weight; fp32 [parts, 64]
  double eps = 0;              // of the next norm
};

// Why x [B, D] is no medium batch.
const char* medium_batch_refusal(const at::Tensor& x);
NormedRows begin_rows(const at::Tensor& x, const StepNorm& next);
// x += mixer(norm(x)).
const char* add_flow_rows(NormedRows& rows, const FlowStep& f, const StepNorm& next);
// x += down (silu(g) u), [g, u] = gate_and_up norm(x).
const char* add_swiglu_rows(NormedRows& rows, const at::Tensor& gate_and_up, const at::Tensor& down, const StepNorm& next);

}  // namespace cyfa::fused
