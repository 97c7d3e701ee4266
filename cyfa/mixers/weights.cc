#include "cyfa/mixers/weights.h"

#include <stdexcept>

namespace cyfa {

Weights::Weights(std::vector<at::Tensor> tensors) : shared_(std::make_shared<Shared>()), count_(tensors.size()) {
  shared_->derived.resize(tensors.size());
  shared_->tensors = std::move(tensors);
}

Weights Weights::slice(ParameterId first, size_t count) const {
  if (first + count > count_) throw std::out_of_range("weights: a slice beyond the last one");
  Weights part = *this;
  part.first_ += first;
  part.count_ = count;
  return part;
}

at::Tensor Weights::once(ParameterId id, const std::function<at::Tensor(const at::Tensor&)>& make) const {
  const std::lock_guard lock(shared_->mutex);
  at::Tensor& derived = shared_->derived[first_ + id];
  if (!derived.defined()) {
    const at::NoGradGuard no_grad;
    derived = make((*this)[id]);
  }
  return derived;
}

}  // namespace cyfa
