// The next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace cyfa {

struct SamplingOptions {
  double temperature = 0;         // 0: the likeliest token
  int64_t top_k = 0;              // keep the k likeliest; 0: all
  double top_p = 1;               // keep the likeliest until they hold this much probability
  double min_p = 0;               // keep those with at least this share of the likeliest one's probability
  double repetition_penalty = 1;  // divides positive and multiplies negative logits of tokens that have occurred
  uint64_t seed = 0;

  void check() const;  // throws std::invalid_argument
};

// Of one sequence: its draws depend on the seed and on how many came before, not on what else is decoded beside it. Ties go to the
// smaller id.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);

  // `history` holds the tokens that the repetition penalty counts. Throws std::runtime_error if no logit is a number.
  int64_t next(std::span<const float> logits, std::span<const int64_t> history);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

}  // namespace cyfa
