// What the linear attention interfaces of the paper's Table 1 have in common: options, output and step. Each interface has a header of its
// own with its recurrence and its inputs:
//
//   la                        S_t = S_{t-1} + k_t v_t^T
//   fixed_scalar_gated_la     S_t = gamma S_{t-1} + k_t v_t^T
//   scalar_gated_la           S_t = alpha_t S_{t-1} + k_t v_t^T
//   row_gated_la              S_t = Diag(alpha_t) S_{t-1} + k_t v_t^T
//   column_gated_la           S_t = S_{t-1} Diag(alpha_t) + k_t v_t^T
//   delta_rule                S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T
//   scalar_gated_delta_rule   S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T
//   row_gated_delta_rule      S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T
//
// with o_t = S_t^T (scale q_t). Every op is differentiable in every tensor, from o and from the final state, throws ArgumentError for bad
// input before anything is computed, and never changes an input. Letters: B batch, T tokens, N sequences (= B, or cu_seqlens' count),
// H heads, K and V widths of a head. Types: q, k, v alike in fp64, fp32 or bf16; gates and beta in any of the three; states in fp32 (fp64
// for fp64). Gates come as logarithms of at most 0, down to -infinity.
#pragma once

#include <torch/types.h>

#include <optional>

#include "cyfa/ops/common/backend.h"

namespace cyfa::ops {

struct RecurrenceOptions {
  Backend backend = Backend::kAuto;
  std::optional<double> scale;  // absent: K^-0.5
  int64_t chunk = 0;            // tokens a chunk (portable); 0: the measured default
  int64_t segment_chunks = 0;   // chunks between the states that forward saves for backward (portable); 0: the measured default
};

struct RecurrenceOutput {
  at::Tensor o;                      // [B, T, H, V], type of v
  at::Tensor final_state;            // [N, H, K, V]
  Backend backend = Backend::kAuto;  // the one that ran
};

// A step, of each op, is one token for each of B states without autograd: inputs without the T dimension; `state` [B, H, K, V], fp32 and
// contiguous, is updated in place; returns o [B, H, V], type of v. Of the options, scale alone is read. On a CPU a sequence's bits do not
// depend on the rest of the batch.

}  // namespace cyfa::ops
