// One decode step of a linear attention recurrence (see reference.h) for many states, on a CPU in fp32. Called by the step of
// ops/recurrence, which splits the pairs over threads. Updates `state` in place and overwrites o.
#pragma once

#include "cyfa/kernels/recurrence/reference.h"

namespace cyfa::recurrence {

// Arguments of step_cpu. Arrays are contiguous. A pair is one head of one sequence.
struct StepParams {
  int64_t pairs = 0, K = 0, V = 0;
  Gate gate = Gate::kNone;
  const float* q = nullptr;          // [pairs, K]
  const float* k = nullptr;          // [pairs, K]
  const float* v = nullptr;          // [pairs, V]
  const float* log_alpha = nullptr;  // [pairs], [pairs, K] or [pairs, V] as the gate says; null for kNone
  const float* beta = nullptr;       // [pairs]; null: no delta rule
  float scale = 1.0F;
  float* state = nullptr;  // [pairs, K, V], updated in place
  float* o = nullptr;      // [pairs, V]
};

// Steps pairs begin .. end - 1. The order of summation depends on K and V only. workspace: K + 2 V floats.
void step_cpu(const StepParams& p, int64_t begin, int64_t end, float* workspace);

}  // namespace cyfa::recurrence
