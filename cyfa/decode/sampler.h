// Sampling of the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace cyfa {

// How tokens are sampled; the default is greedy decoding. The cuts apply in the order top_k, min_p, top_p.
struct SamplingOptions {
  double temperature = 0;         // 0 for greedy decoding
  int64_t top_k = 0;              // keep the k most likely tokens; 0 for all
  double top_p = 1;               // keep the smallest set of most likely tokens with at least this share of the remaining probability
  double min_p = 0;               // keep tokens with at least this fraction of the highest probability
  double repetition_penalty = 1;  // divides positive and multiplies negative logits of tokens in the history
  uint64_t seed = 0;

  void check() const;  // throws std::invalid_argument for a value out of range
};

// Samples the token at `position` of a sequence. Ties go to the smaller id; NaNs are never chosen. The random number depends only on the
// seed and the position, not on earlier draws or the rest of the batch. `seen` marks the tokens to which the repetition penalty applies; it
// is empty, or has one entry per logit. Returns -1 if the largest logit is not finite.
int64_t sample(const SamplingOptions& options, std::span<const float> logits, int64_t position, std::span<const uint8_t> seen = {});

}  // namespace cyfa
