// What the finished runs of an experiment say: one row for each variant.
#pragma once

#include "cyfa/experiment/plan.h"

namespace cyfa::experiment {

// Seeds below which a mean is called preliminary.
inline constexpr size_t kLeastSeeds = 3;

struct Row {
  const Variant* variant = nullptr;
  std::vector<std::pair<double, const Json*>> sweep;  // rate and result, of the runs that are finished
  std::optional<double> rate;                         // the best one, if all have been tried
  bool rate_at_edge = false;                          // of the grid, so that a better one may lie beyond
  std::vector<const Json*> runs;                      // with that rate, one for each seed that is finished; none that failed
  size_t failed = 0;                                  // runs with that rate that diverged
  std::optional<double> mean, spread;  // of loss or accuracy over the runs; the spread is the standard deviation, from two runs on

  bool preliminary() const { return runs.size() < kLeastSeeds; }
};

// Rows of training runs, the best first, those without a figure last.
std::vector<Row> rows_of(const Experiment& experiment, const Plan& plan, Results& results);

// The name of the figure that rows are about: "loss" or "accuracy".
const char* figure_of(Kind kind);

// How the order of rows agrees with the paper's figures. A pair of variants counts as decided where their means differ by more than the
// sum of their spreads.
struct Agreement {
  size_t pairs = 0, same = 0, decided = 0, decided_same = 0;
  std::vector<std::string> against;  // "a is better than b here": decided pairs in the other order
};
Agreement agreement_of(const Experiment& experiment, const std::vector<Row>& rows);

}  // namespace cyfa::experiment
