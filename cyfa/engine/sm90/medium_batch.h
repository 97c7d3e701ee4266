// Decode steps of up to 64 sequences: six launches per layer, with matrix products on tensor core tiles of 64 rows
// (cyfa/kernels/dense/gemm64_sm90.h). The requirements on weights and states and the returned reasons are those of small_batch.h.
//
// Each norm is split over two launches: the launch that adds to the residual stream also writes x times the norm's weight and partial sums
// of squares; the next launch scales its results by the row's reciprocal RMS. A row's result is bitwise the same in any batch of this kind.
#pragma once

#include "cyfa/engine/sm90/small_batch.h"

namespace cyfa::fused {

// The residual stream, prepared for the next norm.
struct NormedRows {
  at::Tensor x;                // bf16 [B, D]
  at::Tensor scaled, squares;  // bf16 [B, D], x times the next norm's weight; fp32 [parts, 64], partial sums of squares
  double eps = 0;              // of the next norm
};

// Why x [B, D] cannot be stepped as a medium batch; null if it can.
const char* medium_batch_refusal(const at::Tensor& x);
// Prepares x for its first norm.
NormedRows begin_rows(const at::Tensor& x, const StepNorm& next);
// x += mixer(norm(x)).
const char* add_flow_rows(NormedRows& rows, const FlowStep& f, const StepNorm& next);
// x += down (silu(g) u), [g, u] = gate_and_up norm(x).
const char* add_swiglu_rows(NormedRows& rows, const at::Tensor& gate_and_up, const at::Tensor& down, const StepNorm& next);

}  // namespace cyfa::fused
