// RowGatedLA of the paper's Table 1, a gate for every key dimension: S_t = Diag(alpha_t) S_{t-1} + k_t v_t^T, o_t = S_t^T (scale q_t). For
// GLA, and for the value pass of GSA, Raven and BLA, where K is the slots. Letters, types and the rules of a step in
// cyfa/ops/recurrence/recurrence.h.
#pragma once

#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

struct RowGatedLaInputs {
  at::Tensor q;                             // [B, T, H, K]
  at::Tensor k;                             // [B, T, H, K]
  at::Tensor v;                             // [B, T, H, V]
  at::Tensor log_alpha;                     // [B, T, H, K]
  std::optional<at::Tensor> initial_state;  // [N, H, K, V]; absent: zeros
  std::optional<at::Tensor> cu_seqlens;     // [N + 1] borders of packed sequences (B = 1); empty sequences are allowed
};

using RowGatedLaOptions = RecurrenceOptions;
using RowGatedLaOutput = RecurrenceOutput;

RowGatedLaOutput row_gated_la(const RowGatedLaInputs& inputs, const RowGatedLaOptions& options = {});

struct RowGatedLaStepInputs {
  at::Tensor q;          // [B, H, K]
  at::Tensor k;          // [B, H, K]
  at::Tensor v;          // [B, H, V]
  at::Tensor log_alpha;  // [B, H, K]
};

at::Tensor row_gated_la_step(const RowGatedLaStepInputs& inputs, const at::Tensor& state, const RowGatedLaOptions& options = {});

}  // namespace cyfa::ops
