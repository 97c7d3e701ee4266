// Options and results that all linear-attention ops share. cyfa/ops/recurrence/table.h lists the ops and calls them by name.
//
// An op updates a state S_t [K, V] token by token, as its definition in the table says, and reads o_t = S_t^T (scale q_t). It is
// differentiable in every tensor, from o and from the final state. It throws ArgumentError for bad input before it computes anything, and
// never changes an input.
//
// Dimensions: B batch, T tokens, N sequences (B, or as many as cu_seqlens bounds), H heads, K and V widths of a head. Types: q, k and v are
// all fp64, all fp32 or all bf16; gates and beta may have any of the three; states are fp32 (fp64 for fp64 inputs). Gates are passed as
// logarithms: at most 0, down to -infinity.
#pragma once

#include <torch/types.h>

#include <optional>

#include "cyfa/ops/common/backend.h"

namespace cyfa::ops {

// Options of a call.
struct RecurrenceOptions {
  Backend backend = Backend::kAuto;
  std::optional<double> scale = {};  // default: K^-0.5
  int64_t chunk = 0;                 // tokens per chunk (portable); 0 for the tuned default
  int64_t segment_chunks = 0;        // chunks between the states that forward saves for backward (portable); 0 for the tuned default
  // From C++: q and k may have fewer heads than v, G of H. Head h then reads and writes by those of head h / (H / G). Where no backend
  // shares them, they are repeated.
  bool shared_keys = false;
};

// The results of a call.
struct RecurrenceOutput {
  at::Tensor o;                      // [B, T, H, V], type of v
  at::Tensor final_state;            // [N, H, K, V]
  Backend backend = Backend::kAuto;  // the one that ran
};

}  // namespace cyfa::ops
