// Activation checkpointing: a function's value now, its inside again when the gradient comes.
#pragma once

#include <torch/types.h>

#include <functional>

namespace cyfa {

// f(x) without keeping anything inside f for backward, where f(x) is computed once more. Parameters that f uses take their gradients
// there, into their .grad. What f refers to must live until then.
at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> f);

}  // namespace cyfa
