#include "cyfa/train/optimizer.h"

#include <cmath>
#include <numbers>

#include "cyfa/io/file_error.h"

namespace cyfa {

double learning_rate(const Recipe& r, int64_t step) {
  if (step < r.warmup) return r.rate * static_cast<double>(step + 1) / static_cast<double>(r.warmup);
  if (r.schedule == "constant") return r.rate;
  const auto length = static_cast<double>(std::max<int64_t>(1, r.steps - r.warmup));
  const double done = std::min(1.0, static_cast<double>(step - r.warmup) / length);
  return r.rate * (r.final_rate + (1 - r.final_rate) * 0.5 * (1 + std::cos(std::numbers::pi * done)));
}

Optimizer::Optimizer(CausalLM& model, const Recipe& r)
    : model_(model), beta1_(r.beta1), beta2_(r.beta2), eps_(r.eps), weight_decay_(r.weight_decay) {
  for (const at::Tensor& p : model.parameters()) {
    first_.push_back(at::zeros_like(p, at::MemoryFormat::Contiguous).detach());
    second_.push_back(at::zeros_like(p, at::MemoryFormat::Contiguous).detach());
  }
}

at::Tensor Optimizer::gradient_norm() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (const at::Tensor& p : model_.parameters()) {
    if (p.grad().defined()) grads.push_back(p.grad());
  }
  if (grads.empty()) return at::zeros({}, at::TensorOptions(model_.device()).dtype(at::kDouble));
  return at::stack(at::_foreach_norm(grads, 2)).to(at::kDouble).norm();
}

void Optimizer::step(double rate, double clip, const at::Tensor& norm, const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  ++steps_;
  const at::TensorOptions options = model_.parameters().at(0).options().dtype(at::kFloat).requires_grad(false);
  const at::Tensor factor = clip > 0 ? at::div(at::full_like(norm, clip), norm + 1e-6).clamp_max_(1.0) : at::ones_like(norm);
  const at::Tensor scale = at::reciprocal(factor).to(at::kFloat), count = at::full({}, static_cast<double>(steps_), options);
  const at::Tensor refused = at::logical_not(at::isfinite(norm + loss)).to(at::kFloat);
  for (const bool decays : {true, false}) {
    std::vector<at::Tensor> parameters, grads, first, second;
    for (size_t id = 0; id < first_.size(); ++id) {
      at::Tensor& p = model_.parameters()[id];
      if (model_.table().specs()[id].weight_decay != decays || !p.grad().defined()) continue;
      parameters.push_back(p);
      grads.push_back(p.grad());
      first.push_back(first_[id]);
      second.push_back(second_[id]);
    }
    if (parameters.empty()) continue;
    const std::vector<at::Tensor> counts(parameters.size(), count);
    at::_fused_adamw_(parameters, grads, first, second, {}, counts, rate, beta1_, beta2_, decays ? weight_decay_ : 0.0, eps_, false, false,
                      scale, refused);
  }
  for (at::Tensor& p : model_.parameters()) p.mutable_grad().reset();
}

NamedTensors Optimizer::state() const {
  NamedTensors out = {{"steps", at::tensor({steps_}, at::kLong)}};
  for (size_t id = 0; id < first_.size(); ++id) {
    out.emplace_back("first." + model_.table().specs()[id].name, first_[id]);
    out.emplace_back("second." + model_.table().specs()[id].name, second_[id]);
  }
  return out;
}

void Optimizer::load(const TensorFile& file) {
  const auto copy = [&](const std::string& name, at::Tensor& to) {
    const at::Tensor from = file.mapped(name);
    if (from.sizes() != to.sizes() || from.scalar_type() != to.scalar_type()) {
      throw io::FileError(file.file().path(), "tensor " + io::printable(name) + " does not fit the model");
    }
    to.copy_(from);
  };
  at::Tensor steps = at::empty({1}, at::kLong);
  copy("steps", steps);
  for (size_t id = 0; id < first_.size(); ++id) {
    copy("first." + model_.table().specs()[id].name, first_[id]);
    copy("second." + model_.table().specs()[id].name, second_[id]);
  }
  steps_ = steps.item<int64_t>();
}

}  // namespace cyfa
