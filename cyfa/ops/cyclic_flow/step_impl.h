// The sm90 backend of cyclic_flow_step (step_sm90.cc), called by step.cc. Refuses everything in builds without CYFA_CUDA.
#pragma once

#include <string>

#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::ops {

// Options with their defaults resolved.
struct StepSettings {
  double scale, norm_eps;
};

// Why the kernel does not support this step; empty if it does. The inputs have been checked.
std::string step_sm90_refusal(const CyclicFlowStepInputs& in, const CyclicFlowState& state);
// Updates `state` in place and returns o.
at::Tensor step_on_sm90(const CyclicFlowStepInputs& in, const CyclicFlowState& state, const StepSettings& settings);

}  // namespace cyfa::ops
