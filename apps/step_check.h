// The check of decode steps that `bench decode` makes before it times them, and `doctor MODEL` by itself.
#pragma once

#include "cyfa/engine/engine.h"

namespace cyfa::app {

// Tokens of the check. On a GPU the first step runs eagerly, the second is recorded, and later ones are replayed.
inline constexpr int64_t kCheckTokens = 4;

// Logits of the last of kCheckTokens random tokens, by steps from `state` and by the forward pass: their relative L2 difference. The state
// is empty unless `begun` is true.
double step_error(StepEngine& engine, ModelState& state, bool begun = false);

// Its limit. In bf16 both round the residual stream in every layer, at different places.
double step_error_limit(at::ScalarType dtype);

}  // namespace cyfa::app
