#include "cyfa/model/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace cyfa {
namespace {

struct Body : torch::CustomClassHolder {
  std::function<at::Tensor(const at::Tensor&)> f;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const c10::intrusive_ptr<Body>& body) {
    ctx->save_for_backward({x});
    ctx->saved_data["body"] = c10::IValue::make_capsule(body);
    const at::NoGradGuard no_grad;
    return body->f(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const auto body = c10::static_intrusive_pointer_cast<Body>(ctx->saved_data["body"].toCapsule());
    const at::AutoGradMode grad_mode(true);
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({body->f(x)}, {grads[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> f) {
  auto body = c10::make_intrusive<Body>();
  body->f = std::move(f);
  return Recompute::apply(x, body);
}

}  // namespace cyfa
