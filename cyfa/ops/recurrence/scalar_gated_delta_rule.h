// ScalarGatedDeltaRule of the paper's Table 1: S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, o_t = S_t^T (scale q_t).
// For Gated DeltaNet. Letters, types and the rules of a step in cyfa/ops/recurrence/recurrence.h.
#pragma once

#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

struct ScalarGatedDeltaRuleInputs {
  at::Tensor q;                             // [B, T, H, K]
  at::Tensor k;                             // [B, T, H, K]
  at::Tensor v;                             // [B, T, H, V]
  at::Tensor beta;                          // [B, T, H] write strengths
  at::Tensor log_alpha;                     // [B, T, H]
  std::optional<at::Tensor> initial_state;  // [N, H, K, V]; absent: zeros
  std::optional<at::Tensor> cu_seqlens;     // [N + 1] borders of packed sequences (B = 1); empty sequences are allowed
};

using ScalarGatedDeltaRuleOptions = RecurrenceOptions;
using ScalarGatedDeltaRuleOutput = RecurrenceOutput;

ScalarGatedDeltaRuleOutput scalar_gated_delta_rule(const ScalarGatedDeltaRuleInputs& inputs,
                                                   const ScalarGatedDeltaRuleOptions& options = {});

struct ScalarGatedDeltaRuleStepInputs {
  at::Tensor q;          // [B, H, K]
  at::Tensor k;          // [B, H, K]
  at::Tensor v;          // [B, H, V]
  at::Tensor beta;       // [B, H]
  at::Tensor log_alpha;  // [B, H]
};

at::Tensor scalar_gated_delta_rule_step(const ScalarGatedDeltaRuleStepInputs& inputs, const at::Tensor& state,
                                        const ScalarGatedDeltaRuleOptions& options = {});

}  // namespace cyfa::ops
