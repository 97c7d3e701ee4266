#include "cyfa/mixers/weights.h"

#include <stdexcept>
#include <utility>

namespace cyfa {

Weights::Weights(std::vector<at::Tensor> tensors) : shared_(std::make_shared<Shared>()), count_(tensors.size()) {
  shared_->derived.resize(tensors.size());
  shared_->tensors = std::move(tensors);
}

Weights::Weights(size_t count, std::function<at::Tensor(ParameterId)> make) : Weights(std::vector<at::Tensor>(count)) {
  shared_->made.resize(count);
  shared_->make = std::move(make);
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
  Weights of_stretch = *this;
  of_stretch.cut_ = std::move(cut);
  return of_stretch;
}

const at::Tensor& Weights::made(ParameterId id) const {
  const std::lock_guard lock(shared_->making);
  if (!shared_->made[id]) {
    const at::AutoGradMode with_grad(true);  // its first use may be in a forward that backward computes again
    shared_->tensors[id] = shared_->make(id);
    shared_->made[id] = true;
  }
  return shared_->tensors[id];
}

at::Tensor Weights::once(ParameterId id, const std::function<at::Tensor(const at::Tensor&)>& make) const {
  const std::lock_guard lock(shared_->deriving);
  at::Tensor& derived = shared_->derived[first_ + id];
  if (!derived.defined()) {
    const at::NoGradGuard no_grad;
    derived = make((*this)[id]);
  }
  return derived;
}

Weights converted_weights(const std::vector<ParameterSpec>& specs, std::vector<at::Tensor> tensors, std::optional<at::ScalarType> compute,
                          std::function<void(ParameterId)> arrive) {
  std::vector<bool> matrix;
  for (const ParameterSpec& spec : specs) matrix.push_back(spec.role == Role::kMatrix);
  const auto converted = [compute, matrix = std::move(matrix)](const at::Tensor& x, ParameterId id) {
    if (!x.defined()) return x;
    return x.to(matrix.at(id) ? compute.value_or(x.scalar_type()) : at::promote_types(x.scalar_type(), at::kFloat));
  };
  if (arrive) {
    const size_t count = tensors.size();
    return {count, [converted, arrive = std::move(arrive), tensors = std::move(tensors)](ParameterId id) {
              arrive(id);
              return converted(tensors[id], id);
            }};
  }
  for (ParameterId id = 0; id < tensors.size(); ++id) tensors[id] = converted(tensors[id], id);
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
