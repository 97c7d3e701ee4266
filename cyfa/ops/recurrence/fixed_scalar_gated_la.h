// FixedScalarGatedLA of the paper's Table 1: S_t = gamma S_{t-1} + k_t v_t^T, o_t = S_t^T (scale q_t), one gamma a head. For RetNet.
// Letters, types and the rules of a step in cyfa/ops/recurrence/recurrence.h.
#pragma once

#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

struct FixedScalarGatedLaInputs {
  at::Tensor q;                             // [B, T, H, K]
  at::Tensor k;                             // [B, T, H, K]
  at::Tensor v;                             // [B, T, H, V]
  at::Tensor log_gamma;                     // [H], one for all tokens
  std::optional<at::Tensor> initial_state;  // [N, H, K, V]; absent: zeros
  std::optional<at::Tensor> cu_seqlens;     // [N + 1] borders of packed sequences (B = 1); empty sequences are allowed
};

using FixedScalarGatedLaOptions = RecurrenceOptions;
using FixedScalarGatedLaOutput = RecurrenceOutput;

FixedScalarGatedLaOutput fixed_scalar_gated_la(const FixedScalarGatedLaInputs& inputs, const FixedScalarGatedLaOptions& options = {});

struct FixedScalarGatedLaStepInputs {
  at::Tensor q;          // [B, H, K]
  at::Tensor k;          // [B, H, K]
  at::Tensor v;          // [B, H, V]
  at::Tensor log_gamma;  // [H]
};

at::Tensor fixed_scalar_gated_la_step(const FixedScalarGatedLaStepInputs& inputs, const at::Tensor& state,
                                      const FixedScalarGatedLaOptions& options = {});

}  // namespace cyfa::ops
