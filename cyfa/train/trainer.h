// The training loop: batches in, steps of the optimizer, metrics and checkpoints out. It prints nothing and reads no options but its
// recipe.
#pragma once

#include <functional>

#include "cyfa/engine/engine.h"
#include "cyfa/train/run_folder.h"

namespace cyfa {

// Sequences side by side, [B, T]; with cu_seqlens their rows are packed into one. Targets of ops::kIgnore do not count.
struct TrainBatch {
  at::Tensor inputs, targets;
  std::optional<at::Tensor> cu_seqlens;
};

// The i-th batch of a run: a function of i alone, so that a run that goes on sees what it would have seen.
using BatchSource = std::function<TrainBatch(int64_t index)>;

// A loss that is not finite; what() says where, and which checkpoint is the last good one.
class TrainingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Trainer {
 public:
  // `train` gives batches of recipe.batch / recipe.accumulate sequences. The model's parameters are trained in place. `folder` may be null:
  // then nothing is written.
  Trainer(CausalLM& model, const Recipe& recipe, BatchSource train, BatchSource validation, RunFolder* folder);

  std::function<void(const Json& metrics)> on_step;      // every step; whole rows every log_every
  std::function<void(const std::string& note)> on_note;  // evaluations, checkpoints
  std::function<bool()> should_stop;                     // asked after every step: true saves and leaves
  std::function<double(const CausalLM&)> extra_metric;   // with every evaluation, as "score"; may be empty

  void resume(const RunCheckpoint& checkpoint);  // the optimizer's state and the step; the model's parameters are the caller's to load

  // To the recipe's last step, or until should_stop. Returns the steps done in all.
  int64_t run();

  double evaluate() const;  // mean loss of the recipe's eval_batches
  std::string engine() const { return engine_->name(); }
  int64_t step() const { return step_; }

 private:
  double one_step(double* norm);
  TrainBatch part_of_step(int64_t part) const;
  [[noreturn]] void fail(const std::string& what) const;  // TrainingError with the step and the last good checkpoint
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
