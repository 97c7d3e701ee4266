// A decoding step as one launch: a decorator around any step engine on a GPU whose mixers need no host between their operations. A step is
// many small kernels, which at small batches take less time than their launches; recorded once as a CUDA graph, they are replayed.
#pragma once

#include "cyfa/engine/engine.h"

namespace cyfa {

// The first step of a state runs as it is, the second is recorded, the others are replayed; another state's tensors begin anew. Logits are
// overwritten by the next step. States that are stepped in turn want a decorator each, which may share an engine. A step that cannot be
// recorded runs as it is from then on, and notes() says why.
std::unique_ptr<StepEngine> record_steps(std::shared_ptr<StepEngine> engine);

}  // namespace cyfa
