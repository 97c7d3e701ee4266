// The runs of an experiment, in the order of their importance. Every variant is first trained with each learning rate of the grid from the
// first seed; with the rate that does best it is then trained from the other seeds. A variant is finished before the next one begins, as
// far as several runs at a time allow, so that an experiment that is stopped has whole rows.
#pragma once

#include <set>

#include "cyfa/experiment/recipe.h"
#include "cyfa/experiment/results.h"

namespace cyfa::experiment {

class Plan {
 public:
  // `data` has the hashes of the texts, and is part of the keys of text runs.
  Plan(const Experiment& experiment, const Json& data, const std::string& device);

  // The runs of a variant that are known: those of the grid; if these are finished, the other seeds'; and, in experiments with needles, for
  // every model that has been trained at the best rate, or is given, the run that looks for them. all_runs() has them in this order.
  std::vector<Run> sweep(const Variant& v) const;
  std::vector<Run> repeats(const Variant& v, Results& results) const;
  std::vector<Run> needles(const Variant& v, Results& results) const;
  std::vector<Run> all_runs(const Variant& v, Results& results) const;
  // The rate that has done best on what the choice is made on, if every rate has been tried; nothing if all have failed.
  std::optional<double> best_rate(const Variant& v, Results& results) const;

  // The next run that is neither finished nor among `under_way` (hashes).
  std::optional<Run> next(Results& results, const std::set<std::string>& under_way) const;

  int64_t total() const;                     // runs
  int64_t finished(Results& results) const;  // of these
  int64_t total(const Variant& v) const;
  double tokens_per_run() const;  // of training; 0 if there is none

 private:
  Run run_of(const Variant& v, double rate, uint64_t seed) const;
  std::vector<Run> speed_runs(const Variant& v) const;
  Json needles_json() const;

  const Experiment& experiment_;
  Json data_;
  std::string device_;
};

// How well a run did on what the learning rate is chosen by: the less, the better. Infinite for a run that failed.
double choice_of(const Json& result);

}  // namespace cyfa::experiment
