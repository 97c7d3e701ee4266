// The tensors of a ParameterTable, in the types used for computation, and what belongs to one training pass: its seed, and how its
// sequences are cut over ranks.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cyfa/mixers/parameters.h"

namespace cyfa {

struct SequenceCut;  // cyfa/mixers/cut.h

// Immutable and cheap to copy: copies and slices share the tensors and keep them alive. Safe to read from any number of threads.
class Weights {
 public:
  Weights() = default;
  explicit Weights(std::vector<at::Tensor> tensors);
  // `count` weights, each made when it is first used, with autograd, and kept. For weights that are not there yet.
  Weights(size_t count, std::function<at::Tensor(ParameterId)> make);

  size_t size() const { return count_; }
  const at::Tensor& operator[](ParameterId id) const { return shared_->make ? made(first_ + id) : shared_->tensors[first_ + id]; }

  // `count` weights from `first` on, renumbered from 0: a layer's weights out of a model's.
  Weights slice(ParameterId first, size_t count) const;

  // The seed of the random numbers that mixers draw in a training pass; a pass without one draws none. Slices that start at different
  // weights have different seeds, so that layers draw different numbers.
  Weights with_noise(uint64_t seed) const;
  std::optional<uint64_t> noise() const { return noise_; }

  // The same weights for a pass over one rank's stretch of sequences that are cut over ranks; null: over whole sequences.
  Weights with_cut(std::shared_ptr<const SequenceCut> cut) const;
  const SequenceCut* cut() const { return cut_.get(); }

  // Returns make(weight id). The result is computed once and cached for all copies and slices, one tensor per weight. For tensors that
  // decoding derives from the weights alone, such as a readout table. Not differentiable.
  at::Tensor once(ParameterId id, const std::function<at::Tensor(const at::Tensor&)>& make) const;

 private:
  struct Shared {
    std::vector<at::Tensor> tensors;
    std::function<at::Tensor(ParameterId)> make;  // empty: all are there
    std::vector<bool> made;
    std::mutex making, deriving;
    std::vector<at::Tensor> derived;  // by ParameterId
  };
  const at::Tensor& made(ParameterId id) const;

  std::shared_ptr<Shared> shared_;
  size_t first_ = 0, count_ = 0;
  std::optional<uint64_t> noise_;
  std::shared_ptr<const SequenceCut> cut_;
};

// Weights of `tensors`, the parameters of `specs` in order: matrices converted to `compute` (default: their stored type), everything else
// to fp32 (or fp64 if stored in fp64). The casts are differentiable. Undefined tensors stay undefined. With `arrive`, the values of the
// tensors may still be on their way: each is read when it is first used, after arrive(id) has waited for it.
Weights converted_weights(const std::vector<ParameterSpec>& specs, std::vector<at::Tensor> tensors, std::optional<at::ScalarType> compute,
                          std::function<void(ParameterId)> arrive = {});

// A seed that depends on both numbers; seeds of neighbouring numbers are unrelated.
uint64_t mixed_seed(uint64_t seed, uint64_t number);

}  // namespace cyfa
