// Cross entropy of a language model head without storing all logits: they are computed for a few rows at a time. Used by the model's loss.
#pragma once

#include <torch/types.h>

namespace cyfa::ops {

// Targets with this value are ignored. Any other that is not 0 .. V - 1 is an error: ArgumentError on a CPU, a loss of NaN on a GPU.
inline constexpr int64_t kIgnore = -100;

// Mean of -log softmax(x W^T)[target] over the rows that are not ignored, in fp32 (fp64 for fp64); 0 if all are. x [N, D], weight [V, D],
// targets [N] int64. Differentiable in x and weight; the gradients are computed together with the loss.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets);

}  // namespace cyfa::ops
