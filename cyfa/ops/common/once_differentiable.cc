// See once_differentiable.h.
#include "cyfa/ops/common/once_differentiable.h"

#include <torch/csrc/autograd/custom_function.h>

namespace cyfa::ops {
namespace {

using TensorVector = std::vector<at::Tensor>;

class Gradients : public torch::autograd::Function<Gradients> {
 public:
  static TensorVector forward(torch::autograd::AutogradContext* ctx, at::TensorList, const TensorVector* gradients, const std::string& op) {
    ctx->saved_data["op"] = op;
    return *gradients;
  }

  static TensorVector backward(torch::autograd::AutogradContext* ctx, const TensorVector&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, ctx->saved_data["op"].toStringRef(),
                                ": the second derivative is not implemented, its backward is written by hand; differentiate it once");
  }
};

}  // namespace

TensorVector once_differentiable(const char* op, TensorVector gradients, const TensorVector& inputs, const TensorVector& upstream) {
  if (!at::GradMode::is_enabled()) return gradients;
  TensorVector from, defined;
  for (const TensorVector* list : {&inputs, &upstream}) {
    for (const at::Tensor& x : *list) {
      if (x.defined()) from.push_back(x);
    }
  }
  for (const at::Tensor& x : gradients) {
    if (x.defined()) defined.push_back(x.detach());
  }
  const TensorVector recorded = Gradients::apply(at::TensorList(from), &defined, std::string(op));
  size_t next = 0;
  for (at::Tensor& x : gradients) {
    if (x.defined()) x = recorded[next++];
  }
  return gradients;
}

}  // namespace cyfa::ops
