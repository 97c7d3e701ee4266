// Sampling of the next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace cyfa {

// How tokens are sampled; the default is greedy decoding.
struct SamplingOptions {
  double temperature = 0;         // 0 for greedy decoding
  int64_t top_k = 0;              // keep the k most likely tokens; 0 for all
  double top_p = 1;               // keep the smallest set of most likely tokens with at least this total probability
  double min_p = 0;               // keep tokens with at least this fraction of the highest probability
  double repetition_penalty = 1;  // divides positive and multiplies negative logits of tokens in the history
  uint64_t seed = 0;

  void check() const;  // throws std::invalid_argument for a value out of range
};

// The sampler of one sequence. Its draws depend only on the seed and the number of earlier draws, not on the rest of the batch. Ties go to
// the smaller id.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);

  // Samples a token. The repetition penalty applies to the tokens in `history`. Throws std::runtime_error if the largest logit is not
  // finite; NaNs are never chosen.
  int64_t next(std::span<const float> logits, std::span<const int64_t> history);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

}  // namespace cyfa
