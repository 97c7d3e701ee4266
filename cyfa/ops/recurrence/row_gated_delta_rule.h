// RowGatedDeltaRule of the paper's Table 1: S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T, o_t = S_t^T (scale q_t).
// For KDA. Letters, types and the rules of a step in cyfa/ops/recurrence/recurrence.h.
#pragma once

#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

struct RowGatedDeltaRuleInputs {
  at::Tensor q;                             // [B, T, H, K]
  at::Tensor k;                             // [B, T, H, K]
  at::Tensor v;                             // [B, T, H, V]
  at::Tensor beta;                          // [B, T, H] write strengths
  at::Tensor log_alpha;                     // [B, T, H, K]
  std::optional<at::Tensor> initial_state;  // [N, H, K, V]; absent: zeros
  std::optional<at::Tensor> cu_seqlens;     // [N + 1] borders of packed sequences (B = 1); empty sequences are allowed
};

using RowGatedDeltaRuleOptions = RecurrenceOptions;
using RowGatedDeltaRuleOutput = RecurrenceOutput;

RowGatedDeltaRuleOutput row_gated_delta_rule(const RowGatedDeltaRuleInputs& inputs, const RowGatedDeltaRuleOptions& options = {});

struct RowGatedDeltaRuleStepInputs {
  at::Tensor q;          // [B, H, K]
  at::Tensor k;          // [B, H, K]
  at::Tensor v;          // [B, H, V]
  at::Tensor beta;       // [B, H]
  at::Tensor log_alpha;  // [B, H, K]
};

at::Tensor row_gated_delta_rule_step(const RowGatedDeltaRuleStepInputs& inputs, const at::Tensor& state,
                                     const RowGatedDeltaRuleOptions& options = {});

}  // namespace cyfa::ops
