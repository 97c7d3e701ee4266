// AdamW over a model's parameter table, and the learning rate schedule.
#pragma once

#include "cyfa/model/causal_lm.h"
#include "cyfa/model/tensor_file.h"
#include "cyfa/train/recipe.h"

namespace cyfa {

// The learning rate at step 0, 1, ...: linear warm-up, then cosine decay to final_rate * rate, or constant.
double learning_rate(const Recipe& recipe, int64_t step);

// Elements begin .. begin + length - 1 of a parameter.
struct ParameterRange {
  ParameterId id = 0;
  int64_t begin = 0, length = 0;
};

// A file of an optimizer's state. The tensors are the optimizer's own: its next step changes them.
struct OptimizerFile {
  std::string name;
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
};

// AdamW with global gradient clipping.
class Optimizer {
 public:
  // Updates the model's parameters in place; keeps a reference to the model. The parameter table says which have weight decay.
  Optimizer(CausalLM& model, const Recipe& recipe);
  // Updates these ranges alone and keeps the moments of these alone: a rank's part. A parameter has at most one range. `exact` has the
  // values to begin with, by ParameterId. Where they have another type than the model's parameter, fp32 for bf16, the optimizer keeps those
  // of its ranges itself, as masters, and each step rounds the updated masters to the parameter.
  Optimizer(CausalLM& model, const Recipe& recipe, const std::vector<ParameterRange>& ranges, const std::vector<at::Tensor>& exact);

  // The gradients of all parameters, one per range when the ranges are whole parameters.
  std::vector<at::Tensor> gradients() const;
  // Global norm of gradients: an fp64 scalar on the parameters' device. Undefined gradients count as zero.
  at::Tensor gradient_norm(const std::vector<at::Tensor>& gradients) const;
  // One optimizer step with the gradients of the ranges, in order; resets those of the parameters afterwards. Gradients are clipped to a
  // global norm of at most `clip` (0 for no clipping), where `norm` is their norm. Ranges without a gradient are not updated. If `norm` or
  // `loss` is not finite, no parameter is updated. Both are fp64 scalars on the parameters' device. Does not synchronize with the device.
  void step(const std::vector<at::Tensor>& gradients, double rate, double clip, const at::Tensor& norm, const at::Tensor& loss);

  // The exact values of the ranges, in order: masters, or views of the parameters.
  std::vector<at::Tensor> values() const;

  // The moments and the step count as optimizer.safetensors of a checkpoint's folder; on several ranks the file of rank `rank`: the moments
  // of its ranges, or its equal part of all moments.
  OptimizerFile state(int rank = 0, int ranks = 1) const;
  // Writes that file. load() reads those of any number of ranks, and takes what belongs to its own ranges. Throws io::FileError.
  void save(const std::filesystem::path& folder, int rank = 0, int ranks = 1) const;
  void load(const std::filesystem::path& folder);

 private:
  struct Slot {
    ParameterRange range;
    bool whole;                // the range is the whole parameter
    at::Tensor master;         // the exact values, if the parameter has rounded ones
    at::Tensor first, second;  // moments, of the exact values' type. All three have the parameter's shape if the range is whole
  };
  at::Tensor range_of(const Slot& slot, const at::Tensor& parameter) const;
  at::Tensor value(const Slot& slot) const;  // the master, or the range of the model's parameter
  std::string name(const Slot& slot) const;  // "model.norm.weight", or "model.norm.weight[16:32]"

  CausalLM& model_;
  double beta1_, beta2_, eps_, weight_decay_;
  std::vector<Slot> slots_;
  int64_t steps_ = 0;
};

// Whether a checkpoint's folder has an optimizer state.
bool has_optimizer_state(const std::filesystem::path& checkpoint);

// A hash of a model's parameter table: names and shapes in order.
uint64_t table_hash(const ParameterTable& table);

}  // namespace cyfa
