// The training loop: optimizer steps, evaluation, metrics and checkpoints. It is configured by its recipe alone and prints nothing.
//
// On several ranks each trains on its own rows of every micro-batch. The gradients are summed over the ranks (exchange.h), so that the
// parameters stay equal bit for bit, and whatever ends or interrupts a run (a signal, a loss that is not finite) does so on all ranks after
// the same step. Checkpoints are written while training goes on, one at a time; they count once all ranks have written their files.
#pragma once

#include <functional>

#include "cyfa/engine/engine.h"
#include "cyfa/mixers/cut.h"
#include "cyfa/train/exchange.h"
#include "cyfa/train/run_folder.h"
#include "cyfa/train/watch.h"

namespace cyfa {

// Inputs and targets, [B, T]. With cu_seqlens the rows are concatenated to packed sequences. Targets equal to ops::kIgnore are ignored.
struct TrainBatch {
  at::Tensor inputs, targets;
  std::optional<at::Tensor> cu_seqlens;
  std::shared_ptr<const SequenceCut> cut = {};  // if these are a rank's stretch of sequences that are cut over ranks
};

// Returns the batch with this index. It must depend on the index alone, so that a resumed run sees the same batches.
using BatchSource = std::function<TrainBatch(int64_t index)>;

// The loss or the gradient norm is not finite. what() names the step, the last checkpoint from before the first sign of it, and how to go
// back there.
class TrainingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The types of a recipe's matrices: in the plain model, where fp8 means bf16, and as TrainOptions::compute.
std::optional<at::ScalarType> compute_type(const Recipe& recipe);
std::optional<at::ScalarType> engine_compute_type(const Recipe& recipe);

// Trains one model.
class Trainer {
 public:
  // `train` returns micro-batches of recipe.batch / recipe.accumulate sequences, on several ranks this rank's equal part of them; so does
  // `validation`. The model's parameters, which begin equal on all ranks, are trained in place. With a sharded optimizer on several ranks,
  // a model that computes in bf16 gets its matrices in bf16: their exact values, in fp32, are then the optimizers' masters and those of the
  // checkpoints. If `folder` is null, nothing is written.
  // The ranks of `context`, a part of `group`, get the same micro-batches, and each trains on a stretch of their tokens. Throws
  // std::invalid_argument if the model cannot be cut so.
  Trainer(CausalLM& model, const Recipe& recipe, BatchSource train, BatchSource validation, RunFolder* folder, const Group& group = {},
          const Group& context = {});

  // Callbacks; all may be empty.
  std::function<void(const Json& metrics)> on_step;      // after every step
  std::function<void(const std::string& note)> on_note;  // when a checkpoint is in place, and when the loss leaves its range
  std::function<bool()> should_stop;                     // called after every step; true saves a checkpoint and ends run()
  std::function<double(const CausalLM&)> extra_metric;   // called with every evaluation, logged as "score"
  std::function<double(int64_t step)> rate_of_step;      // the learning rate at step 0, 1, ..., in place of the recipe's
  bool save_at_end = true;  // run() ends with a checkpoint. An experiment goes on with the model in memory instead
  double peak = 0;          // FLOP/s of all ranks together, for the metric "mfu"; 0 for none

  // Restores the optimizer state, the step and what belongs to it. The caller loads the model's parameters.
  void resume(const RunCheckpoint& checkpoint);
  // Restores the optimizer state alone, to continue from a checkpoint in a new run.
  void continue_from(const std::filesystem::path& checkpoint);

  // Trains to the recipe's last step, or until should_stop on any rank. Returns the total number of completed steps. Throws TrainingError,
  // on all ranks alike, and GroupError if another rank fails.
  int64_t run();

  // If the loss or the gradient norm has left its range and not come back: since when, and how to go back. Else empty.
  std::string warning() const;

  double evaluate() const;  // mean validation loss over the recipe's eval_batches, of all ranks
  const TrainEngine& engine() const { return *engine_; }
  int64_t step() const { return step_; }

 private:
  // What the ranks tell each other after a step, and what they have agreed on.
  struct AfterStep {
    bool stop = false, save = false;
    bool saved = false;            // all ranks have written their files of a checkpoint
    int64_t slowest = 0;           // the rank that computed longest since the last log
    double longest = 0, mean = 0;  // of the ranks' seconds of computing since then
  };

  Trainer(CausalLM& model, const Recipe& recipe, BatchSource train, BatchSource validation, RunFolder* folder, const Group& group,
          const Group& context, std::vector<at::Tensor> exact);
  int64_t run_steps();
  double rate() const;            // of the next step
  double one_step(double* norm);  // returns the loss; sets *norm to the gradient norm
  TrainBatch own_stretch(TrainBatch batch) const;
  void check_context() const;
  Traffic traffic() const;  // of both groups
  TrainBatch on_device(TrainBatch batch) const;
  std::vector<double> divisors(const std::vector<TrainBatch>& parts) const;
  AfterStep agree(bool stop, bool save) const;
  // Throws TrainingError. `together`: all ranks do so.
  [[noreturn]] void fail(const std::string& what, bool together = true);
  CausalLM exact_model();  // the model with exact values: a collective call; valid until the next step
  void begin_save(double loss, std::optional<double> eval_loss, double seconds);
  void finish_save();  // nothing if no checkpoint is being written
  void watch(double loss, double norm);
  std::string way_back() const;  // the last checkpoint from before the first sign, and how to go back there

  CausalLM& model_;
  Recipe recipe_;
  BatchSource train_, validation_;
  RunFolder* folder_;
  Group group_, context_;
  GradientExchange exchange_;
  Optimizer optimizer_;
  std::unique_ptr<TrainEngine> engine_;
  TrainingWatch watch_;
  bool reads_late_ = false;  // the engine waits for parameters of other ranks when it first reads them
  int64_t step_ = 0;
  double seconds_before_ = 0;  // of training, in earlier sessions
  double computing_ = 0;       // seconds of this rank's forward and backward since the last log
};

}  // namespace cyfa
