// LA of the paper's Table 1, linear attention that forgets nothing: S_t = S_{t-1} + k_t v_t^T, o_t = S_t^T (scale q_t). For linear_attn and
// ABC. Letters, types and the rules of a step in cyfa/ops/recurrence/recurrence.h.
#pragma once

#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

struct LaInputs {
  at::Tensor q;                             // [B, T, H, K]
  at::Tensor k;                             // [B, T, H, K]
  at::Tensor v;                             // [B, T, H, V]
  std::optional<at::Tensor> initial_state;  // [N, H, K, V]; absent: zeros
  std::optional<at::Tensor> cu_seqlens;     // [N + 1] borders of packed sequences (B = 1); empty sequences are allowed
};

using LaOptions = RecurrenceOptions;
using LaOutput = RecurrenceOutput;

LaOutput la(const LaInputs& inputs, const LaOptions& options = {});

struct LaStepInputs {
  at::Tensor q;  // [B, H, K]
  at::Tensor k;  // [B, H, K]
  at::Tensor v;  // [B, H, V]
};

at::Tensor la_step(const LaStepInputs& inputs, const at::Tensor& state, const LaOptions& options = {});

}  // namespace cyfa::ops
