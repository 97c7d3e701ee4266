// A layer as the step engine holds it, for decode steps and for whole sequences.
#pragma once

#include <string>

#include "cyfa/engine/sm90/small_batch.h"

namespace cyfa::fused {

// A layer with its fused weights.
struct StepLayer {
  const Block* block = nullptr;
  Weights w;
  const CyclicFlowSpec* spec = nullptr;  // null if the mixer has no fused kernels; `refusal` says why
  std::string refusal;
  FlowStep flow;  // without the states
  StepNorm mixer_norm, mlp_norm;
  at::Tensor gate_and_up, down;
};

}  // namespace cyfa::fused
