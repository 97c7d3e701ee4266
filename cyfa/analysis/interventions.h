// What the clock is good for: the loss of held-out text when the increments of some heads are replaced while the rest of the model stays as
// it is (the paper's table of clock interventions).
#pragma once

#include "cyfa/analysis/clock.h"

namespace cyfa::analysis {

// What is put in place of the increments.
struct InterventionPlan {
  std::vector<bool> heads;    // for each head with a clock, whether its increments are replaced
  std::vector<double> means;  // for each head with a clock, the increment of "mean"
  int64_t shift = 257;        // tokens by which "shifted" moves a head's increments, around the end of the sequence
};

// The loss of each held-out sequence under one setting of the clock.
struct InterventionLoss {
  std::string name;            // "original", "mean", "shifted" or "one"
  std::vector<double> losses;  // of each sequence, nats per token
  double mean = 0;
  // Against the original: mean change of a sequence's loss, its standard error (NaN for one sequence), and the sequences that got worse.
  double change = 0, error = 0;
  int64_t worse = 0;
};

// The four settings of the paper, on ids [N, T]: the original increments, the mean of each head, the original increments of the same
// sequence shifted in time, and 1. Throws std::invalid_argument if the shift is a multiple of the T - 1 tokens that are read, which moves
// nothing.
std::vector<InterventionLoss> intervene(const CausalLM& model, const Weights& w, const at::Tensor& ids, const InterventionPlan& plan,
                                        const Progress& progress = {});

}  // namespace cyfa::analysis
