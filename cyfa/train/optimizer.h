// AdamW over a model's table of parameters, and its learning rate.
#pragma once

#include "cyfa/model/causal_lm.h"
#include "cyfa/model/tensor_file.h"
#include "cyfa/train/recipe.h"

namespace cyfa {

// The rate of step 0, 1, ...: up over the warm-up, then down a cosine to a share of itself, or constant.
double learning_rate(const Recipe& recipe, int64_t step);

class Optimizer {
 public:
  // The parameters stay the model's; weight decay goes by its table.
  Optimizer(CausalLM& model, const Recipe& recipe);

  // Norm of all gradients together: one double, on the parameters' device.
  at::Tensor gradient_norm() const;
  // One step; then the gradients are gone. They are scaled so that their norm, `norm`, is at most `clip` (0: whatever it is). Parameters
  // without a gradient do not move, and none does where norm or loss (both as of gradient_norm) is not finite. The host waits for nothing.
  void step(double rate, double clip, const at::Tensor& norm, const at::Tensor& loss);

  // Moments and the count of steps, to be saved and set again.
  NamedTensors state() const;
  void load(const TensorFile& file);  // throws io::FileError

 private:
  CausalLM& model_;
  double beta1_, beta2_, eps_, weight_decay_;
  std::vector<at::Tensor> first_, second_;  // by ParameterId, fp32
  int64_t steps_ = 0;
};

}  // namespace cyfa
