// Second derivatives. A backward that calls kernels gives tensors that autograd takes for constants: a derivative of them would be zero
// without a warning. It passes its gradients through this function on return, and a second derivative throws.
#pragma once

#include <torch/types.h>

#include <vector>

namespace cyfa::ops {

// `gradients`, as functions of `inputs` whose derivative throws NotImplementedError with the op's name; unchanged if no graph of this
// backward is recorded (create_graph). `inputs` are all tensors that the gradients depend on: what forward saved and the upstream
// gradients. Tensors of both may be undefined.
std::vector<at::Tensor> once_differentiable(const char* op, std::vector<at::Tensor> gradients, const std::vector<at::Tensor>& inputs,
                                            const std::vector<at::Tensor>& upstream);

}  // namespace cyfa::ops
