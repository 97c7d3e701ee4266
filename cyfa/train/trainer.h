// The training loop: optimizer steps, evaluation, metrics and checkpoints. It is configured by its recipe alone and prints nothing.
#pragma once

#include <functional>

#include "cyfa/engine/engine.h"
#include "cyfa/train/run_folder.h"

namespace cyfa {

// Inputs and targets, [B, T]. With cu_seqlens the rows are concatenated to packed sequences. Targets equal to ops::kIgnore are ignored.
struct TrainBatch {
  at::Tensor inputs, targets;
  std::optional<at::Tensor> cu_seqlens;
};

// Returns the batch with this index. It must depend on the index alone, so that a resumed run sees the same batches.
using BatchSource = std::function<TrainBatch(int64_t index)>;

// The loss or the gradient norm is not finite. what() names the step and the last good checkpoint.
class TrainingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Trains one model.
class Trainer {
 public:
  // `train` returns micro-batches of recipe.batch / recipe.accumulate sequences. The model's parameters are trained in place. If `folder`
  // is null, nothing is written.
  Trainer(CausalLM& model, const Recipe& recipe, BatchSource train, BatchSource validation, RunFolder* folder);

  // Callbacks; all may be empty.
  std::function<void(const Json& metrics)> on_step;      // after every step
  std::function<void(const std::string& note)> on_note;  // after a checkpoint has been saved
  std::function<bool()> should_stop;                     // called after every step; true saves a checkpoint and ends run()
  std::function<double(const CausalLM&)> extra_metric;   // called with every evaluation, logged as "score"

  // Restores the optimizer state and the step. The caller loads the model's parameters.
  void resume(const RunCheckpoint& checkpoint);

  // Trains to the recipe's last step, or until should_stop. Returns the total number of completed steps.
  int64_t run();

  double evaluate() const;  // mean validation loss over the recipe's eval_batches
  const TrainEngine& engine() const { return *engine_; }
  int64_t step() const { return step_; }

 private:
  double one_step(double* norm);                          // returns the loss; sets *norm to the gradient norm
  TrainBatch part_of_step(int64_t part) const;            // a micro-batch
  [[noreturn]] void fail(const std::string& what) const;  // throws TrainingError
  void save(std::optional<double> eval_loss);
  std::optional<at::ScalarType> compute() const { return recipe_.dtype == "bf16" ? std::optional(at::kBFloat16) : std::nullopt; }

  CausalLM& model_;
  Recipe recipe_;
  BatchSource train_, validation_;
  RunFolder* folder_;
  Optimizer optimizer_;
  std::unique_ptr<TrainEngine> engine_;
  int64_t step_ = 0;
};

}  // namespace cyfa
