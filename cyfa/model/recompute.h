// Activation checkpointing: a layer's output now, its inside again when the gradient comes.
#pragma once

#include <torch/types.h>

#include <functional>

#include "cyfa/mixers/mixer.h"

namespace cyfa {

// What is computed again: x to y, and the final state of the layer.
using RecomputedBody = std::function<at::Tensor(const at::Tensor& x, MixerState* final_state)>;

// body(x) without keeping anything inside it for backward, where it is computed once more; *final_state is that of the first time and takes
// no gradient. Parameters that the body uses take their gradients in backward, into their .grad. The body is copied and must own, or share,
// all that it uses.
at::Tensor recomputed(const at::Tensor& x, RecomputedBody body, MixerState* final_state);

}  // namespace cyfa
