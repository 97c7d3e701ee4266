// ColumnGatedLA of the paper's Table 1, a gate for every value dimension: S_t = S_{t-1} Diag(alpha_t) + k_t v_t^T, o_t = S_t^T (scale q_t).
// For GLA (col), and for the key pass of GSA, Raven and BLA, where V is the slots. Letters, types and the rules of a step in
// cyfa/ops/recurrence/recurrence.h.
#pragma once

#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

struct ColumnGatedLaInputs {
  at::Tensor q;                             // [B, T, H, K]
  at::Tensor k;                             // [B, T, H, K]
  at::Tensor v;                             // [B, T, H, V]
  at::Tensor log_alpha;                     // [B, T, H, V]
  std::optional<at::Tensor> initial_state;  // [N, H, K, V]; absent: zeros
  std::optional<at::Tensor> cu_seqlens;     // [N + 1] borders of packed sequences (B = 1); empty sequences are allowed
};

using ColumnGatedLaOptions = RecurrenceOptions;
using ColumnGatedLaOutput = RecurrenceOutput;

ColumnGatedLaOutput column_gated_la(const ColumnGatedLaInputs& inputs, const ColumnGatedLaOptions& options = {});

struct ColumnGatedLaStepInputs {
  at::Tensor q;          // [B, H, K]
  at::Tensor k;          // [B, H, K]
  at::Tensor v;          // [B, H, V]
  at::Tensor log_alpha;  // [B, H, V]
};

at::Tensor column_gated_la_step(const ColumnGatedLaStepInputs& inputs, const at::Tensor& state, const ColumnGatedLaOptions& options = {});

}  // namespace cyfa::ops
