// Activation checkpointing: a layer saves only its input and is recomputed in backward.
#pragma once

#include <torch/types.h>

#include <functional>

#include "cyfa/mixers/mixer.h"

namespace cyfa {

// The layer: maps x to y and sets the final state.
using RecomputedBody = std::function<at::Tensor(const at::Tensor& x, MixerState* final_state)>;

// Returns body(x) without saving activations; backward runs the body again. *final_state comes from the first run and carries no gradient.
// In backward, the gradients of parameters used by the body are accumulated into their .grad. The body is copied and outlives this call, so
// it must own, or share ownership of, everything it uses.
at::Tensor recomputed(const at::Tensor& x, RecomputedBody body, MixerState* final_state);

}  // namespace cyfa
