// One run of an experiment: trains a model as the run's key says, and measures it, or looks for needles with a model that another run has
// trained or that is given. Called by the worker processes of `cyfa experiment`.
#pragma once

#include <functional>

#include "cyfa/experiment/results.h"
#include "cyfa/model/causal_lm.h"

namespace cyfa::experiment {

// Where and with what a run is executed; nothing here changes what it computes, but for rounding.
struct Place {
  std::filesystem::path folder;            // of the run: checkpoints and metrics. An interrupted run in it is resumed
  std::filesystem::path data, validation;  // folders of tokens, for runs on text and needles
  std::filesystem::path model;  // of needles: a model that is given, or the folder of a run that has kept its model. May be empty
  std::string device = "cpu";
  double save_minutes = 10;  // between checkpoints
  bool keep = false;         // keep the trained model in the folder; else the folder is removed once the run has finished
};

// Progress of a run: steps done, steps in all, tokens per second so far, loss.
using Progress = std::function<void(int64_t step, int64_t steps, double tokens_per_s, double loss)>;

// The result of a run on text, of recall or of needles; a model that needles need and that nobody has kept is trained first. Nothing if
// `should_stop` ended it: a checkpoint is saved, and the next call goes on from there. A training that diverges is a result, with the
// reason as "failed". Throws for everything else, such as data that cannot be read.
std::optional<Json> execute(const Json& key, const Place& place, const Progress& progress, const std::function<bool()>& should_stop);

// Mean loss in nats of the sequences ids [B, T + 1] at each of the T positions, given everything before it: [T], fp64 on the CPU.
at::Tensor loss_by_position(const CausalLM& model, const Weights& w, const at::Tensor& ids);

}  // namespace cyfa::experiment
