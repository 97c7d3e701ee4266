// The tensors of a ParameterTable in the types in which they are computed with.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cyfa/mixers/parameters.h"

namespace cyfa {

// Cheap to copy: copies and slices share the tensors and keep them alive. The tensors never change, so any number of threads may read.
class Weights {
 public:
  Weights() = default;
  explicit Weights(std::vector<at::Tensor> tensors);

  size_t size() const { return count_; }
  const at::Tensor& operator[](ParameterId id) const { return shared_->tensors[first_ + id]; }

  // The weights of a part whose own table begins at `first`: a layer's, of a model's.
  Weights slice(ParameterId first, size_t count) const;

  // What `make` makes of weight `id`, computed once for all copies and slices; one such tensor a weight. For tensors that decoding derives
  // from weights alone, such as a readout's table; not differentiable.
  at::Tensor once(ParameterId id, const std::function<at::Tensor(const at::Tensor&)>& make) const;

 private:
  struct Shared {
    std::vector<at::Tensor> tensors;
    std::mutex mutex;
    std::vector<at::Tensor> derived;  // by ParameterId
  };

  std::shared_ptr<Shared> shared_;
  size_t first_ = 0, count_ = 0;
};

}  // namespace cyfa
