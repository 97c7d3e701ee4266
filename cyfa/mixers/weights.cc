#include "cyfa/mixers/weights.h"

#include <stdexcept>
#include <utility>

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
  if (noise_) part.noise_ = mixed_seed(*noise_, first);
  return part;
}

Weights Weights::with_noise(uint64_t seed) const {
  Weights noisy = *this;
  noisy.noise_ = seed;
  return noisy;
}

Weights Weights::with_cut(std::shared_ptr<const SequenceCut> cut) const {
  Weights of_stretch(shared_->tensors);
  of_stretch.shared_->cut = std::move(cut);
  of_stretch.first_ = first_;
  of_stretch.count_ = count_;
  of_stretch.noise_ = noise_;
  return of_stretch;
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

Weights converted_weights(const std::vector<ParameterSpec>& specs, std::vector<at::Tensor> tensors, std::optional<at::ScalarType> compute) {
  for (size_t id = 0; id < tensors.size(); ++id) {
    at::Tensor& x = tensors[id];
    if (!x.defined()) continue;
    const bool matrix = specs.at(id).role == Role::kMatrix;
    x = x.to(matrix ? compute.value_or(x.scalar_type()) : at::promote_types(x.scalar_type(), at::kFloat));
  }
  return Weights(std::move(tensors));
}

// SplitMix64 (Steele, Lea and Flood 2014) applied to the pair.
uint64_t mixed_seed(uint64_t seed, uint64_t number) {
  uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (number + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace cyfa
