// One token of a linear attention interface (cyfa/kernels/recurrence/reference.h says which there are) for many states, in place, in fp32.
#pragma once

#include "cyfa/kernels/recurrence/reference.h"

namespace cyfa::recurrence {

struct StepParams {
  int64_t pairs = 0, K = 0, V = 0;  // pairs of a sequence and a head
  Gate gate = Gate::kNone;
  const float* q = nullptr;          // [pairs, K]
  const float* k = nullptr;          // [pairs, K]
  const float* v = nullptr;          // [pairs, V]
  const float* log_alpha = nullptr;  // [pairs], [pairs, K] or [pairs, V] as the gate says
  const float* beta = nullptr;       // [pairs]; null: no delta rule
  float scale = 1.0F;
  float* state = nullptr;  // [pairs, K, V], read and written
  float* o = nullptr;      // [pairs, V]
};

// Pairs begin .. end - 1. The order of every sum depends on K and V alone. workspace: K + 2 V floats.
void step_cpu(const StepParams& p, int64_t begin, int64_t end, float* workspace);

}  // namespace cyfa::recurrence
