// Call::recomputed.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "cyfa/mixers/call.h"
#include "cyfa/ops/common/autocast.h"

namespace cyfa {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// All of a call but its tensors, which are y, the weights in this order, and the initial states, if any.
struct PartOfCall : torch::CustomClassHolder {
  Call::Part run;
  std::vector<ParameterId> weights;
  std::optional<at::Tensor> cu_seqlens;
  size_t states = 0;

  // The part's result and its final states.
  variable_list operator()(at::TensorList inputs) const {
    const ops::WithoutAutocast plain_types;
    std::vector<at::Tensor> tensors(weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end()) + 1);
    for (size_t i = 0; i < weights.size(); ++i) tensors[weights[i]] = inputs[1 + i];
    const Weights w(std::move(tensors));
    const MixerState initial = inputs.slice(1 + weights.size()).vec();
    Call call(w, inputs[0], cu_seqlens, initial.empty() ? nullptr : &initial, states);
    variable_list all = {run(call, inputs[0])};
    for (at::Tensor& state : call.take_final_state()) all.push_back(std::move(state));
    return all;
  }
};

class RecomputedPart : public torch::autograd::Function<RecomputedPart> {
 public:
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs, const c10::intrusive_ptr<PartOfCall>& part) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["part"] = c10::IValue::make_capsule(part);
    ctx->set_materialize_grads(false);
    return (*part)(inputs);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto part = c10::static_intrusive_pointer_cast<PartOfCall>(ctx->saved_data["part"].toCapsule());
    const at::AutoGradMode grad_mode(true);
    variable_list inputs, wanted, results, upstream;
    for (const at::Tensor& x : ctx->get_saved_variables()) {
      inputs.push_back(x.detach().requires_grad_(x.requires_grad()));
      if (x.requires_grad()) wanted.push_back(inputs.back());
    }
    const variable_list all = (*part)(inputs);
    for (size_t i = 0; i < all.size(); ++i) {
      if (!grads[i].defined() || !all[i].requires_grad()) continue;
      results.push_back(all[i]);
      upstream.push_back(grads[i]);
    }
    variable_list found(wanted.size());
    if (!results.empty())
      found = torch::autograd::grad(results, wanted, upstream, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
    variable_list out;
    auto next = found.begin();
    for (const at::Tensor& x : inputs) out.push_back(x.requires_grad() ? *next++ : at::Tensor());
    out.emplace_back();  // of the part
    return out;
  }
};

}  // namespace

at::Tensor Call::recomputed(const at::Tensor& y, const std::vector<ParameterId>& weights, const Part& part) {
  variable_list inputs = {y};
  for (const ParameterId id : weights) inputs.push_back(w_[id]);
  if (initial_ != nullptr) inputs.insert(inputs.end(), initial_->begin(), initial_->end());
  const bool any = std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& x) { return x.requires_grad(); });
  if (is_step() || !at::GradMode::is_enabled() || !any) return part(*this, y);
  const auto kept = c10::make_intrusive<PartOfCall>();
  kept->run = part;
  kept->weights = weights;
  kept->cu_seqlens = cu_seqlens_;
  kept->states = final_.size();
  const variable_list all = RecomputedPart::apply(at::TensorList(inputs), kept);
  for (size_t i = 0; i < final_.size(); ++i) final_[i] = all[1 + i];
  return all[0];
}

}  // namespace cyfa
