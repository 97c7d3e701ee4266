// Scalar-decay linear attention (ScalarGatedLA of the paper's Table 1): S_t = alpha_t S_{t-1} + k_t v_t^T, o_t = S_t^T (scale q_t).
// cyclic_flow makes this pass twice; other mixers call it directly. Letters and types as in cyfa/ops/cyclic_flow.h.
#pragma once

#include <torch/types.h>

#include <optional>

#include "cyfa/ops/backend.h"

namespace cyfa::ops {

struct ScalarGatedLaInputs {
  at::Tensor q;          // [B, T, H, K]
  at::Tensor k;          // [B, T, H, K]
  at::Tensor v;          // [B, T, H, V]
  at::Tensor log_alpha;  // [B, T, H], at most 0
  std::optional<at::Tensor> initial_state;  // [N, H, K, V] fp32 (fp64 for fp64); absent: zeros; never changed
  std::optional<at::Tensor> cu_seqlens;     // [N + 1]
};

struct ScalarGatedLaOptions {
  Backend backend = Backend::kAuto;
  std::optional<double> scale;  // absent: K^-0.5
  int64_t chunk = 0;            // 0: the measured default
  int64_t segment_chunks = 0;
};

struct ScalarGatedLaOutput {
  at::Tensor o;            // [B, T, H, V], type of v
  at::Tensor final_state;  // [N, H, K, V]
  Backend backend = Backend::kAuto;
};

// Differentiable in every tensor, from o and from the final state. Throws ArgumentError for bad input.
ScalarGatedLaOutput scalar_gated_la(const ScalarGatedLaInputs& inputs, const ScalarGatedLaOptions& options = {});

}  // namespace cyfa::ops
