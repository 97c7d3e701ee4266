// A decoding step of up to 64 rows in few launches, on Hopper with matrices in bf16: what decode_step.h has for few rows, by products that
// keep the tensor cores' 64 rows (cyfa/kernels/dense/gemm64_sm90.h). The same rules for weights and states; builds without CUDA have
// nothing of this.
//
// Each part adds itself to the rows and prepares them for the norm that comes next. It says whether it was there for what it was given; if
// not, nothing has happened. A row has the same bits in any batch of such rows.
#pragma once

#include "cyfa/engine/sm90/decode_step.h"

namespace cyfa::ops {

// Rows on their way through a model.
struct StepRows {
  at::Tensor x;                // bf16 [B, D]
  at::Tensor scaled, squares;  // x as the next norm takes it: bf16 [B, D] times the norm's weight, fp32 [parts, 64]
  double eps = 0;              // of the next norm
};

// Whether x [B, D] has no more rows than these products take, and is no wider than they pay for.
bool some_rows(const at::Tensor& x);
StepRows begin_rows(const at::Tensor& x, const StepNorm& next);
// x += mixer(norm(x)).
bool add_flow_rows(StepRows& rows, const FlowStep& f, const StepNorm& next);
// x += down (silu(g) u), [g, u] = gate_up norm(x).
bool add_swiglu_rows(StepRows& rows, const at::Tensor& gate_up, const at::Tensor& down, const StepNorm& next);

}  // namespace cyfa::ops
