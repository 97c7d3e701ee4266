// LongBench (Bai et al., 2023; version 1, THUDM/LongBench at commit 2e00731): prompts, truncation and scores of its English and code tasks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cyfa/eval/encoder.h"

namespace cyfa::eval {

enum class LongBenchMetric { kQaF1, kRougeL, kClassification, kCodeSimilarity, kCount, kParagraph };

// A task of LongBench.
struct LongBenchKind {
  const char* name;
  const char* about;
  const char* prompt;  // with {context} and {input}
  LongBenchMetric metric;
  int64_t new_tokens;            // of an answer at most
  bool first_line = false;       // only the first line of the answer counts
  bool ends_at_newline = false;  // generation ends there
  bool paper = true;             // among the 14 tasks of the CyFA paper
};
const std::vector<LongBenchKind>& longbench_kinds();
const char* metric_name(LongBenchMetric metric);

std::string longbench_prompt(const LongBenchKind& kind, std::string_view context, std::string_view input);

// A prompt of more than `most` tokens (with BOS, if the policy puts one) without its middle: the texts of its first and its last most / 2
// tokens, one after the other. `cut` is set to the tokens left out.
std::string without_middle(const std::string& prompt, int64_t most, const Encoder& encoder, int64_t& cut);

// The best score over the answers, from 0 to 1.
double longbench_score(const LongBenchKind& kind, std::string_view generated, std::span<const std::string> answers,
                       std::span<const std::string> classes);

}  // namespace cyfa::eval
