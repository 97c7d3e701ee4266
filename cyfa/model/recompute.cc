#include "cyfa/model/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cyfa/ops/common/once_differentiable.h"

namespace cyfa {
namespace {

struct Body : torch::CustomClassHolder {
  explicit Body(RecomputedBody f) : run(std::move(f)) {}
  RecomputedBody run;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const c10::intrusive_ptr<Body>& body,
                            MixerState* final_state) {
    ctx->save_for_backward({x});
    ctx->saved_data["body"] = c10::IValue::make_capsule(body);
    const at::NoGradGuard no_grad;
    return body->run(x, final_state);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const auto body = c10::static_intrusive_pointer_cast<Body>(ctx->saved_data["body"].toCapsule());
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const at::Tensor x = saved[0].detach().requires_grad_();
    MixerState unused;
    {
      const at::AutoGradMode recorded(true);
      torch::autograd::backward({body->run(x, &unused)}, {grads[0]});
    }
    return ops::once_differentiable("recompute", {x.grad(), at::Tensor(), at::Tensor()}, saved, grads);
  }
};

}  // namespace

at::Tensor recomputed(const at::Tensor& x, RecomputedBody body, MixerState* final_state) {
  return Recompute::apply(x, c10::make_intrusive<Body>(std::move(body)), final_state);
}

}  // namespace cyfa
