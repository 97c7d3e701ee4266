// The makers of RULER's samples, one function for each form of task. Used by ruler.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cyfa/eval/ruler.h"

namespace cyfa::eval {

struct NeedleForm {
  enum Hay { kNoise, kEssay, kNeedles } haystack;
  std::string key, value;  // "words", "numbers" or "uuids"
  int64_t keys, values, queries;
};
std::unique_ptr<SampleMaker> needle_maker(const NeedleForm& form, const RulerOptions& options, const Haystack& haystack);
// Variable tracking. Its worked example has a fixed length, which is found here.
std::unique_ptr<SampleMaker> tracking_maker(const RulerOptions& options, TokenCounter& tokens);
std::unique_ptr<SampleMaker> common_words_maker(const RulerOptions& options);
// `length`: without the answer's tokens.
std::unique_ptr<SampleMaker> frequent_words_maker(const RulerOptions& options, int64_t length);
std::unique_ptr<SampleMaker> question_maker(const RulerOptions& options, const QaSource& source);

inline constexpr char kNoise[] = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

std::vector<int64_t> sorted(std::vector<int64_t> numbers);
// The lines with inserted[j] before line places[j], joined by "\n". Places are sorted.
std::string with_lines(const std::vector<std::string>& lines, const std::vector<std::string>& inserted, const std::vector<int64_t>& places);
// "1. a 2. b ..."
std::string numbered(const std::vector<std::string_view>& words);

}  // namespace cyfa::eval
