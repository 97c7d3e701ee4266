#include "cyfa/decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "cyfa/decode/sampling_rule.h"

namespace cyfa {
namespace {

struct Candidate {
  int64_t id;
  uint32_t distance;
  uint64_t weight;
};

// The k largest logits, in the order of their ids.
std::vector<int64_t> largest(const std::vector<float>& logits, int64_t k) {
  std::vector<int64_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  if (k == 0 || k >= static_cast<int64_t>(ids.size())) return ids;
  std::nth_element(ids.begin(), ids.begin() + k, ids.end(), [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  ids.resize(static_cast<size_t>(k));
  std::sort(ids.begin(), ids.end());
  return ids;
}

uint64_t total_weight(const std::vector<Candidate>& candidates) {
  uint64_t sum = 0;
  for (const Candidate& c : candidates) sum += c.weight;
  return sum;
}

// Keeps the fewest of the nearest candidates with a share `top_p` of the weight, in the order of their ids.
void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  const uint64_t target = sampling::top_p_target(top_p, total_weight(candidates));
  std::erase_if(candidates, [](const Candidate& c) { return c.weight == 0; });
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.distance < b.distance || (a.distance == b.distance && a.id < b.id); });
  uint64_t kept = 0;
  size_t count = 0;
  while (kept < target) kept += candidates[count++].weight;
  candidates.resize(count);
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

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

sampling::Rule sampling_rule(const SamplingOptions& options) {
  constexpr double kLog2E = 1.4426950408889634;
  options.check();
  sampling::Rule rule;
  rule.greedy = options.temperature == 0;
  rule.penalty = static_cast<float>(options.repetition_penalty);
  // The bounds keep scale and penalty finite and positive in fp32.
  rule.penalty = std::clamp(rule.penalty, 1e-30F, 1e30F);
  rule.scale = rule.greedy ? 0 : static_cast<float>(std::min(kLog2E / options.temperature, 1e30));
  rule.top_k = options.top_k;
  rule.top_p = options.top_p;
  if (options.min_p > 0) rule.farthest = static_cast<uint32_t>(std::min(-std::log2(options.min_p), 62.0) * 0x1p26);
  rule.seed = options.seed;
  return rule;
}

int64_t sample(const SamplingOptions& options, std::span<const float> logits, int64_t position, std::span<const uint8_t> seen) {
  const sampling::Rule rule = sampling_rule(options);
  std::vector<float> adjusted(logits.size());
  float best = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    adjusted[i] = sampling::adjusted(logits[i], !seen.empty() && seen[i] != 0, rule.penalty);
    best = std::max(best, adjusted[i]);
  }
  if (!std::isfinite(best)) return -1;
  if (rule.greedy) return std::find(adjusted.begin(), adjusted.end(), best) - adjusted.begin();

  std::vector<Candidate> candidates;
  candidates.reserve(adjusted.size());
  for (const int64_t id : largest(adjusted, rule.top_k)) {
    const uint32_t distance = sampling::distance(best, adjusted[static_cast<size_t>(id)], rule.scale);
    if (distance <= rule.farthest) candidates.push_back({id, distance, sampling::weight(distance)});
  }
  if (rule.top_p < 1) keep_top_p(candidates, rule.top_p);
  uint64_t point = sampling::drawn_point(rule, static_cast<uint64_t>(position), total_weight(candidates));
  for (const Candidate& c : candidates) {
    if (point < c.weight) return c.id;
    point -= c.weight;
  }
  return candidates.back().id;  // not reached: the point is below the sum of the weights
}

}  // namespace cyfa
