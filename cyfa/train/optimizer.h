// AdamW over a model's parameter table, and the learning rate schedule.
#pragma once

#include "cyfa/model/causal_lm.h"
#include "cyfa/model/tensor_file.h"
#include "cyfa/train/recipe.h"

namespace cyfa {

// The learning rate at step 0, 1, ...: linear warm-up, then cosine decay to final_rate * rate, or constant.
double learning_rate(const Recipe& recipe, int64_t step);

// AdamW with global gradient clipping.
class Optimizer {
 public:
  // Updates the model's parameters in place; keeps a reference to the model. The parameter table says which have weight decay.
  Optimizer(CausalLM& model, const Recipe& recipe);

  // Global norm of all gradients: an fp64 scalar on the parameters' device.
  at::Tensor gradient_norm() const;
  // One optimizer step; resets the gradients afterwards. Gradients are clipped to a global norm of at most `clip` (0 for no clipping),
  // where `norm` is their norm. Parameters without a gradient are not updated. If `norm` or `loss` is not finite, no parameter is updated.
  // Both are fp64 scalars on the parameters' device. Does not synchronize with the device.
  void step(double rate, double clip, const at::Tensor& norm, const at::Tensor& loss);

  // The moments and the step count, for saving and restoring.
  NamedTensors state() const;
  void load(const TensorFile& file);  // throws io::FileError

 private:
  CausalLM& model_;
  double beta1_, beta2_, eps_, weight_decay_;
  std::vector<at::Tensor> first_, second_;  // moments by ParameterId, fp32
  int64_t steps_ = 0;
};

}  // namespace cyfa
