// Decode steps as CUDA graphs: a decorator around any GPU step engine whose mixers do not need the host during a step. At small batches a
// step consists of many kernels that are shorter than their launch overhead. Capturing a step once and replaying it removes that overhead.
#pragma once

#include "cyfa/engine/engine.h"

namespace cyfa {

// The first step of a state runs eagerly, the second is captured, later ones are replayed. A step with other state tensors starts over, so
// states that are stepped alternately need one decorator each; the decorators may share an engine. The next step overwrites the logits. If
// capture fails, steps run eagerly from then on, and notes() gives the reason.
//
// A step takes its ids from the host or from the device; a change between the two captures again. On the device, the graph reads the tensor
// with which it was captured: the same tensor is read in place, which needs no copy, and another one is copied to it.
std::unique_ptr<StepEngine> record_steps(std::shared_ptr<StepEngine> engine);

}  // namespace cyfa
