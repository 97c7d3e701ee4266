// Figures over the documents of a task, with their standard errors, as lm-evaluation-harness defines them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cyfa::eval {

// A figure of a task.
struct Metric {
  std::string name;
  double value = 0;
  std::optional<double> error = {};  // standard error, where one is defined
  bool higher_is_better = true;
};

// What documents contributed: a row for each, with the task's columns.
class Scores {
 public:
  Scores(std::vector<std::string> columns, std::vector<std::vector<double>> rows);

  int64_t documents() const { return static_cast<int64_t>(rows_.size()); }
  const std::vector<std::vector<double>>& rows() const { return rows_; }
  std::vector<double> column(const std::string& name) const;  // throws std::logic_error for a column that does not exist

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<double>> rows_;
};

double mean(std::span<const double> values);
// The standard error of the mean, from the sample standard deviation; absent for fewer than two values.
std::optional<double> mean_error(std::span<const double> values);
// The mean of a column times `scale`, named like the column, with its standard error.
Metric mean_metric(const Scores& scores, const std::string& column, double scale = 1);

// exp of minus the mean of log-likelihoods, with the bootstrap error of lm-evaluation-harness: 100 blocks of 1000 resamples, block i drawn
// as Python's random.Random(i).choices does.
Metric perplexity_metric(const std::string& name, std::span<const double> log_likelihoods);
// exp(-sum of log-likelihoods / sum of weights): word and byte perplexity. No error is defined.
Metric weighted_perplexity(const std::string& name, std::span<const double> log_likelihoods, std::span<const double> weights);
Metric bits_per_unit(const std::string& name, std::span<const double> log_likelihoods, std::span<const double> weights);

}  // namespace cyfa::eval
