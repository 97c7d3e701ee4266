// Clock increments over a text: their statistics by head, the paper's two classes of heads, how much of their variance the token explains,
// and the same token in different contexts (the paper's appendix "Input Dependence of the Learned Clock").
#pragma once

#include "cyfa/analysis/clock.h"
#include "cyfa/data/tokenizer.h"

namespace cyfa::analysis {

// The increments of every head with a clock.
struct Increments {
  std::vector<Head> heads;
  at::Tensor ids;    // [N, T] int64
  at::Tensor delta;  // [heads, N, T] fp32 on the CPU
};

// Runs ids [N, T] through the model, a sequence at a time.
Increments measure_increments(const CausalLM& model, const Weights& w, const at::Tensor& ids, const Progress& progress = {});

// kNearOne: p05 > 0.95. kInputDependent: p95 - p05 >= 0.1. kOther: neither.
enum class HeadClass { kNearOne, kInputDependent, kOther };
const char* class_name(HeadClass kind);  // "near one", "input dependent", "other"

// Statistics of one head over all tokens. Quantiles interpolate between neighbours.
struct HeadIncrements {
  Head head;
  double mean = 0, deviation = 0, p05 = 0, p95 = 0;
  HeadClass kind = HeadClass::kOther;
};
std::vector<HeadIncrements> increments_by_head(const Increments& increments);

// The number of heads of a class, and mean and standard deviation of all their increments; NaN without heads.
struct ClassIncrements {
  HeadClass kind = HeadClass::kOther;
  int64_t heads = 0;
  double mean = 0, deviation = 0;
};
std::vector<ClassIncrements> increments_by_class(const Increments& increments, const std::vector<HeadIncrements>& by_head);

// Shares of the increments in `bins` equal parts of 0 .. 1, [heads, bins].
at::Tensor increment_histogram(const Increments& increments, int64_t bins);

// The variance of a head's increments: between the means of the tokens of the vocabulary, and within occurrences of the same token.
struct TokenSplit {
  Head head;
  double between = 0, within = 0;  // they add up to the variance
  // The share of the variance that the token explains, between / (between + within). A token that occurs once has no variance within, so
  // a short text overstates this share; `adjusted` corrects for the number of distinct tokens, as an adjusted R^2 does. NaN for a head
  // whose increments are all equal.
  double identity = 0, adjusted = 0;
};
std::vector<TokenSplit> split_by_token(const Increments& increments);
// The split of several heads together: sums of their variances. `counted` has a flag for each head.
TokenSplit total_split(const std::vector<TokenSplit>& splits, const std::vector<bool>& counted, const Increments& increments);
// The heads that the paper counts: input dependent, and not in the first layer, whose clock sees only the token.
std::vector<bool> context_heads(const std::vector<HeadIncrements>& by_head);

// An occurrence of a token: its increment in some head, and the text around it.
struct Occurrence {
  int64_t sequence = 0, position = 0;
  double delta = 0;
  std::string before, after;
};
// A token that one head gives markedly different increments.
struct TokenCase {
  Head head;
  int64_t token = 0;
  std::string word;
  int64_t count = 0;     // occurrences in the text
  double spread = 0;     // p90 - p10 of its increments
  Occurrence low, high;  // near p10 and p90
};
// The `most` cases of largest spread among the counted heads, each head and each token once. Words of three or more letters are preferred;
// a tokenizer without any (bytes) gives its visible tokens.
std::vector<TokenCase> token_cases(const Increments& increments, const std::vector<bool>& counted, const Tokenizer& tokenizer, size_t most);

}  // namespace cyfa::analysis
