// The loss of a language model's head without its logits: rows of them are made, used and forgotten a few at a time.
#pragma once

#include <torch/types.h>

namespace cyfa::ops {

// Targets of this value do not count.
inline constexpr int64_t kIgnore = -100;

// Mean over the rows that count of -log softmax(x W^T)[target], in fp32 (fp64 for fp64): x [N, D], weight [V, D], targets [N] int64.
// Differentiable in x and weight; the gradients are computed along with the loss. 0 where no row counts.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets);

}  // namespace cyfa::ops
