// The linear attention interfaces of cyfa/ops/recurrence/recurrence.h by their names, for whatever goes through all of them: dispatcher,
// checks, benchmarks.
#pragma once

#include <string_view>
#include <vector>

#include "cyfa/kernels/recurrence/reference.h"
#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

using recurrence::Gate;

struct Recurrence {
  const char* op;
  Gate gate;
  bool delta;
  bool fixed = false;  // one gate a head for all tokens
};

const std::vector<Recurrence>& recurrences();
const Recurrence& recurrence_of(std::string_view op);  // throws std::out_of_range

struct RecurrenceInputs {
  at::Tensor q, k, v;
  std::optional<at::Tensor> log_alpha = {};  // [B, T, H], [B, T, H, K] or [B, T, H, V] as the gate says, [H] where it is fixed; absent for kNone
  std::optional<at::Tensor> beta = {};       // [B, T, H] for the delta rules
  std::optional<at::Tensor> initial_state = {}, cu_seqlens = {};
};

RecurrenceOutput run_recurrence(const Recurrence& r, RecurrenceInputs in, const RecurrenceOptions& options);

// Inputs without the T dimension; state [B, H, K, V] is updated in place.
at::Tensor step_recurrence(const Recurrence& r, RecurrenceInputs in, const at::Tensor& state, const RecurrenceOptions& options);

}  // namespace cyfa::ops
