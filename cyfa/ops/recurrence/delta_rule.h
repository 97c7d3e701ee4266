// DeltaRule of the paper's Table 1: S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, o_t = S_t^T (scale q_t). For DeltaNet. Keys of
// unit length keep the state bounded for beta in [0, 2]; the op does not insist. Letters, types and the rules of a step in
// cyfa/ops/recurrence/recurrence.h.
#pragma once

#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

struct DeltaRuleInputs {
  at::Tensor q;                             // [B, T, H, K]
  at::Tensor k;                             // [B, T, H, K]
  at::Tensor v;                             // [B, T, H, V]
  at::Tensor beta;                          // [B, T, H] write strengths
  std::optional<at::Tensor> initial_state;  // [N, H, K, V]; absent: zeros
  std::optional<at::Tensor> cu_seqlens;     // [N + 1] borders of packed sequences (B = 1); empty sequences are allowed
};

using DeltaRuleOptions = RecurrenceOptions;
using DeltaRuleOutput = RecurrenceOutput;

DeltaRuleOutput delta_rule(const DeltaRuleInputs& inputs, const DeltaRuleOptions& options = {});

struct DeltaRuleStepInputs {
  at::Tensor q;     // [B, H, K]
  at::Tensor k;     // [B, H, K]
  at::Tensor v;     // [B, H, V]
  at::Tensor beta;  // [B, H]
};

at::Tensor delta_rule_step(const DeltaRuleStepInputs& inputs, const at::Tensor& state, const DeltaRuleOptions& options = {});

}  // namespace cyfa::ops
