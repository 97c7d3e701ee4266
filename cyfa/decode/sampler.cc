#include "cyfa/decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_set>

namespace cyfa {
namespace {

struct Candidate {
  int64_t id;
  double weight;  // first a logit, then an unnormalized probability
};

bool likelier(const Candidate& a, const Candidate& b) { return a.weight > b.weight || (a.weight == b.weight && a.id < b.id); }

}  // namespace

void SamplingOptions::check() const {
  const auto refuse = [](const char* name, double value, const char* wanted) {
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + ", wanted " + wanted);
  };
  if (!(temperature >= 0) || !std::isfinite(temperature)) refuse("temperature", temperature, "a number of at least 0");
  if (top_k < 0) refuse("top_k", static_cast<double>(top_k), "at least 0");
  if (!(top_p > 0 && top_p <= 1)) refuse("top_p", top_p, "above 0, at most 1");
  if (!(min_p >= 0 && min_p <= 1)) refuse("min_p", min_p, "from 0 to 1");
  if (!(repetition_penalty > 0) || !std::isfinite(repetition_penalty)) refuse("repetition_penalty", repetition_penalty, "a number above 0");
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) { options.check(); }

int64_t Sampler::next(std::span<const float> logits, std::span<const int64_t> history) {
  std::vector<Candidate> all(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto logit = static_cast<double>(logits[i]);
    all[i] = {static_cast<int64_t>(i), std::isnan(logit) ? -std::numeric_limits<double>::infinity() : logit};
  }
  if (options_.repetition_penalty != 1) {
    for (const int64_t id : std::unordered_set<int64_t>(history.begin(), history.end())) {
      if (id < 0 || static_cast<size_t>(id) >= all.size()) continue;
      double& logit = all[static_cast<size_t>(id)].weight;
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    }
  }
  if (all.empty()) throw std::runtime_error("there are no logits to choose from");
  const Candidate best = *std::min_element(all.begin(), all.end(), likelier);
  if (!std::isfinite(best.weight))
    throw std::runtime_error("the logits hold no finite largest value: the model's weights or its state are damaged");
  if (options_.temperature == 0) return best.id;

  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < all.size()) {
    std::nth_element(all.begin(), all.begin() + options_.top_k, all.end(), likelier);
    all.resize(static_cast<size_t>(options_.top_k));
  }
  for (Candidate& c : all) c.weight = std::exp((c.weight - best.weight) / options_.temperature);
  std::erase_if(all, [&](const Candidate& c) { return c.weight < options_.min_p || c.weight == 0; });
  std::sort(all.begin(), all.end(), likelier);
  double total = std::accumulate(all.begin(), all.end(), 0.0, [](double sum, const Candidate& c) { return sum + c.weight; });
  if (options_.top_p < 1) {
    double kept = 0;
    size_t count = 0;
    while (count < all.size() && kept < options_.top_p * total) kept += all[count++].weight;
    all.resize(std::max<size_t>(1, count));
    total = kept;
  }
  // 53 random bits as a number in [0, 1). std::uniform_real_distribution differs between standard libraries.
  double point = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (const Candidate& c : all) {
    point -= c.weight;
    if (point < 0) return c.id;
  }
  return all.back().id;
}

}  // namespace cyfa
