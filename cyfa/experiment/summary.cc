#include "cyfa/experiment/summary.h"

#include <algorithm>
#include <cmath>

namespace cyfa::experiment {

const char* figure_of(Kind kind) { return kind == Kind::kMqar ? "accuracy" : "loss"; }

std::vector<Row> rows_of(const Experiment& e, const Plan& plan, Results& results) {
  std::vector<Row> rows;
  for (const Variant& v : e.variants) {
    Row row;
    row.variant = &v;
    for (const Run& run : plan.sweep(v)) {
      if (const Json* result = results.find(run)) row.sweep.emplace_back(run.rate, result);
    }
    row.rate = plan.best_rate(v, results);
    if (row.rate) {
      row.rate_at_edge =
          e.rates.size() > 1 && (*row.rate == *std::min_element(e.rates.begin(), e.rates.end()) ||
                                 *row.rate == *std::max_element(e.rates.begin(), e.rates.end()));
      for (const auto& [rate, result] : row.sweep) {
        if (rate == *row.rate) row.runs.push_back(result);
      }
      for (const Run& run : plan.repeats(v, results)) {
        const Json* result = results.find(run);
        if (result == nullptr) continue;
        if (result->contains("failed")) {
          ++row.failed;
        } else {
          row.runs.push_back(result);
        }
      }
    }
    double sum = 0, squares = 0;
    const auto n = static_cast<double>(row.runs.size());
    for (const Json* run : row.runs) sum += (*run)[figure_of(e.kind)].get<double>();
    if (n > 0) row.mean = sum / n;
    for (const Json* run : row.runs) squares += std::pow((*run)[figure_of(e.kind)].get<double>() - *row.mean, 2);
    if (n > 1) row.spread = std::sqrt(squares / (n - 1));
    rows.push_back(std::move(row));
  }
  const double sign = e.kind == Kind::kMqar ? -1 : 1;
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    if (!a.mean || !b.mean) return a.mean.has_value() && !b.mean.has_value();
    return sign * *a.mean < sign * *b.mean;
  });
  return rows;
}

Agreement agreement_of(const Experiment& e, const std::vector<Row>& rows) {
  Agreement a;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = i + 1; j < rows.size(); ++j) {  // row i is better than row j here
      const Row &better = rows[i], &worse = rows[j];
      if (!better.mean || !worse.mean || !better.variant->stated || !worse.variant->stated) continue;
      if (*better.variant->stated == *worse.variant->stated) continue;
      const bool same = (*better.variant->stated > *worse.variant->stated) == e.more_is_better;
      const bool decided = !better.preliminary() && !worse.preliminary() &&
                           std::abs(*better.mean - *worse.mean) > better.spread.value_or(0) + worse.spread.value_or(0);
      ++a.pairs;
      a.same += same ? 1 : 0;
      if (!decided) continue;
      ++a.decided;
      a.decided_same += same ? 1 : 0;
      if (!same) a.against.push_back(better.variant->name + " does better than " + worse.variant->name);
    }
  }
  return a;
}

}  // namespace cyfa::experiment
