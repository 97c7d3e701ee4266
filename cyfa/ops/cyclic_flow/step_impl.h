// The sm90 backend of cyclic_flow_step, as the op calls it. Built with CYFA_CUDA; elsewhere it refuses.
#pragma once

#include <string>

#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::ops {

struct StepSettings {
  double scale, norm_eps;
};

// Why the kernel does not take this step; empty if it does. The inputs have been checked.
std::string step_sm90_refusal(const CyclicFlowStepInputs& in, const CyclicFlowState& state);
at::Tensor step_on_sm90(const CyclicFlowStepInputs& in, const CyclicFlowState& state, const StepSettings& settings);

}  // namespace cyfa::ops
