// The training loop: optimizer steps, evaluation, metrics and checkpoints. It is configured by its recipe alone and prints nothing.
#pragma once

#include <functional>

#include "cyfa/engine/engine.h"
#include "cyfa/train/run_folder.h"
#include "cyfa/train/watch.h"

namespace cyfa {

// Inputs and targets, [B, T]. With cu_seqlens the rows are concatenated to packed sequences. Targets equal to ops::kIgnore are ignored.
struct TrainBatch {
  at::Tensor inputs, targets;
  std::optional<at::Tensor> cu_seqlens;
};

// Returns the batch with this index. It must depend on the index alone, so that a resumed run sees the same batches.
using BatchSource = std::function<TrainBatch(int64_t index)>;

// The loss or the gradient norm is not finite. what() names the step, the last checkpoint from before the first sign of it, and how to go
// back there.
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
  std::function<void(const std::string& note)> on_note;  // after a checkpoint has been saved, and when the loss leaves its range
  std::function<bool()> should_stop;                     // called after every step; true saves a checkpoint and ends run()
  std::function<double(const CausalLM&)> extra_metric;   // called with every evaluation, logged as "score"
  std::function<double(int64_t step)> rate_of_step;      // the learning rate at step 0, 1, ..., in place of the recipe's
  bool save_at_end = true;  // run() ends with a checkpoint. An experiment goes on with the model in memory instead

  // Restores the optimizer state, the step and what belongs to it. The caller loads the model's parameters.
  void resume(const RunCheckpoint& checkpoint);
  // Restores the optimizer state alone, to continue from a checkpoint in a new run.
  void continue_from(const std::filesystem::path& checkpoint);

  // Trains to the recipe's last step, or until should_stop. Returns the total number of completed steps.
  int64_t run();

  // If the loss or the gradient norm has left its range and not come back: since when, and how to go back. Else empty.
  std::string warning() const;

  double evaluate() const;  // mean validation loss over the recipe's eval_batches
  const TrainEngine& engine() const { return *engine_; }
  int64_t step() const { return step_; }

 private:
  double rate() const;                                    // of the next step
  double one_step(double* norm);                          // returns the loss; sets *norm to the gradient norm
  TrainBatch part_of_step(int64_t part) const;            // a micro-batch
  [[noreturn]] void fail(const std::string& what) const;  // throws TrainingError
  void save(double loss, std::optional<double> eval_loss, double seconds);
  void watch(double loss, double norm);
  std::string way_back() const;  // the last checkpoint from before the first sign, and how to go back there
  std::optional<at::ScalarType> compute() const { return recipe_.dtype == "bf16" ? std::optional(at::kBFloat16) : std::nullopt; }

  CausalLM& model_;
  Recipe recipe_;
  BatchSource train_, validation_;
  RunFolder* folder_;
  Optimizer optimizer_;
  std::unique_ptr<TrainEngine> engine_;
  TrainingWatch watch_;
  int64_t step_ = 0;
  double seconds_before_ = 0;  // of training, in earlier sessions
};

}  // namespace cyfa
