// ScalarGatedLA of the paper's Table 1: S_t = alpha_t S_{t-1} + k_t v_t^T, o_t = S_t^T (scale q_t). For Mamba-2 and, over interleaved
// ranks, Mamba-3; cyclic_flow makes this pass twice. Letters, types and the rules of a step in cyfa/ops/recurrence/recurrence.h.
#pragma once

#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

struct ScalarGatedLaInputs {
  at::Tensor q;                             // [B, T, H, K]
  at::Tensor k;                             // [B, T, H, K]
  at::Tensor v;                             // [B, T, H, V]
  at::Tensor log_alpha;                     // [B, T, H]
  std::optional<at::Tensor> initial_state;  // [N, H, K, V]; absent: zeros
  std::optional<at::Tensor> cu_seqlens;     // [N + 1] borders of packed sequences (B = 1); empty sequences are allowed
};

using ScalarGatedLaOptions = RecurrenceOptions;
using ScalarGatedLaOutput = RecurrenceOutput;

ScalarGatedLaOutput scalar_gated_la(const ScalarGatedLaInputs& inputs, const ScalarGatedLaOptions& options = {});

struct ScalarGatedLaStepInputs {
  at::Tensor q;          // [B, H, K]
  at::Tensor k;          // [B, H, K]
  at::Tensor v;          // [B, H, V]
  at::Tensor log_alpha;  // [B, H]
};

at::Tensor scalar_gated_la_step(const ScalarGatedLaStepInputs& inputs, const at::Tensor& state, const ScalarGatedLaOptions& options = {});

}  // namespace cyfa::ops
