// See ruler.h.
#include "cyfa/eval/ruler.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cyfa/data/utf8.h"
#include "cyfa/eval/ruler_makers.h"
#include "cyfa/eval/text_metrics.h"

namespace cyfa::eval {
namespace {

constexpr NeedleForm::Hay kNoiseHay = NeedleForm::kNoise, kEssay = NeedleForm::kEssay, kNeedles = NeedleForm::kNeedles;

struct NeedleRow {
  const char* name;
  NeedleForm form;
};
const std::vector<NeedleRow>& needle_rows() {
  static const std::vector<NeedleRow> rows = {
      {"niah_single_1", {kNoiseHay, "words", "numbers", 1, 1, 1}},  {"niah_single_2", {kEssay, "words", "numbers", 1, 1, 1}},
      {"niah_single_3", {kEssay, "words", "uuids", 1, 1, 1}},       {"niah_multikey_1", {kEssay, "words", "numbers", 4, 1, 1}},
      {"niah_multikey_2", {kNeedles, "words", "numbers", 1, 1, 1}}, {"niah_multikey_3", {kNeedles, "uuids", "uuids", 1, 1, 1}},
      {"niah_multivalue", {kEssay, "words", "numbers", 1, 4, 1}},   {"niah_multiquery", {kEssay, "words", "numbers", 4, 1, 4}},
  };
  return rows;
}

std::unique_ptr<SampleMaker> make_maker(const RulerKind& kind, const RulerOptions& options, TokenCounter& tokens) {
  const std::string name = kind.name;
  for (const NeedleRow& row : needle_rows()) {
    if (name == row.name) return needle_maker(row.form, options, options.haystack != nullptr ? *options.haystack : Haystack::provided());
  }
  if (name == "vt") return tracking_maker(options, tokens);
  if (name == "cwe") return common_words_maker(options);
  if (name == "fwe") return frequent_words_maker(options, options.length - kind.new_tokens);
  if (options.questions == nullptr) throw std::invalid_argument(name + ": wanted a file of questions (" + kind.qa_files + ")");
  return question_maker(options, *options.questions);
}

}  // namespace

const std::vector<RulerKind>& ruler_kinds() {
  static const std::vector<RulerKind> kinds = {
      {"niah_single_1", "a number in noise (S-NIAH-1)", 128, false, nullptr},
      {"niah_single_2", "a number in essays (S-NIAH-2)", 128, true, nullptr},
      {"niah_single_3", "a UUID in essays (S-NIAH-3)", 128, true, nullptr},
      {"niah_multikey_1", "one of four numbers in essays (MK-NIAH-1)", 128, true, nullptr},
      {"niah_multikey_2", "one number of a text of numbers (MK-NIAH-2)", 128, false, nullptr},
      {"niah_multikey_3", "one UUID of a text of UUIDs (MK-NIAH-3)", 128, false, nullptr},
      {"niah_multivalue", "four numbers of one key in essays", 128, true, nullptr},
      {"niah_multiquery", "the numbers of four keys in essays", 128, true, nullptr},
      {"vt", "variable tracking: a chain of assignments in noise", 30, false, nullptr},
      {"cwe", "common words: the ten words that a list repeats most", 120, false, nullptr},
      {"fwe", "frequent words: three of words whose counts follow a power law", 50, false, nullptr},
      {"qa_1", "questions of SQuAD among its paragraphs", 32, false, "squad", true},
      {"qa_2", "questions of HotpotQA among its paragraphs", 32, false, "hotpotqa", true},
  };
  return kinds;
}

const RulerKind& ruler_kind(const std::string& name) {
  for (const RulerKind& kind : ruler_kinds()) {
    if (name == kind.name) return kind;
  }
  throw std::invalid_argument("RULER has no task " + name);
}

double ruler_score(const RulerKind& kind, const std::vector<std::string>& outputs, std::string_view generated) {
  const std::string text = ruler_prediction(generated);
  const auto found = std::count_if(outputs.begin(), outputs.end(), [&](const std::string& output) { return occurs(output, text); });
  if (kind.any) return found > 0 ? 1 : 0;
  return static_cast<double>(found) / static_cast<double>(outputs.size());
}

int64_t TokenCounter::operator()(std::string_view text) {
  ids_.clear();
  tokenizer_.append(text, false, cache_, ids_);
  return static_cast<int64_t>(ids_.size());
}

std::optional<int64_t> largest_size(int64_t smallest, int64_t most, const std::function<int64_t(int64_t size)>& tokens) {
  struct Tried {
    int64_t size, tokens;
  };
  Tried fits{smallest, tokens(smallest)};
  if (fits.tokens > most) return std::nullopt;
  Tried beyond{};
  for (int64_t size = std::max<int64_t>(2 * smallest, 8);; size *= 2) {
    beyond = {size, tokens(size)};
    if (beyond.tokens > most) break;
    fits = beyond;
  }
  // The line through both meets the limit close to the answer. Trying a bit less and a bit more narrows the interval 16 times.
  while (beyond.size - fits.size > 1) {
    const int64_t width = beyond.size - fits.size, margin = width / 32;
    const double share = static_cast<double>(most - fits.tokens) / static_cast<double>(beyond.tokens - fits.tokens);
    const int64_t guess = fits.size + static_cast<int64_t>(share * static_cast<double>(width));
    for (const int64_t wanted : {guess - margin, guess + 1 + margin}) {
      if (beyond.size - fits.size <= 1) break;
      const int64_t size = std::clamp(wanted, fits.size + 1, beyond.size - 1);
      const Tried now{size, tokens(size)};
      (now.tokens <= most ? fits : beyond) = now;
    }
  }
  return fits.size;
}

RulerGenerator::RulerGenerator(const RulerKind& kind, const Tokenizer& tokenizer, const RulerOptions& options)
    : kind_(kind), tokenizer_(tokenizer), options_(options) {
  TokenCounter tokens(tokenizer);
  maker_ = make_maker(kind, options, tokens);
  const std::string name = std::string(kind.name) + " at length " + std::to_string(options.length);
  int64_t least = 0;
  const std::optional<int64_t> size = largest_size(maker_->smallest(), options.length - kind.new_tokens, [&](int64_t s) {
    const RulerSample sample = maker_->make(0, s, Draws(options.seed, name + " size"));
    const int64_t count = tokens(sample.input + sample.answer_prefix);
    if (least == 0) least = count;
    return count;
  });
  if (!size) {
    throw std::invalid_argument(name + ": with this tokenizer the shortest sample has " + std::to_string(least + kind.new_tokens) +
                                " tokens, " + std::to_string(kind.new_tokens) + " of them for the answer; wanted a greater length");
  }
  size_ = *size;
}

RulerGenerator::~RulerGenerator() = default;

int64_t RulerGenerator::most_samples() const {
  return kind_.qa_files != nullptr ? static_cast<int64_t>(options_.questions->questions.size()) : std::numeric_limits<int64_t>::max();
}

RulerSample RulerGenerator::sample(int64_t index) const {
  if (index < 0 || index >= most_samples())
    throw std::invalid_argument(std::string(kind_.name) + ": there is no sample " + std::to_string(index));
  TokenCounter tokens(tokenizer_);
  const std::string name = std::string(kind_.name) + " at length " + std::to_string(options_.length);
  const int64_t step = std::min(maker_->step(), std::max<int64_t>(1, size_ / 50));
  for (int64_t size = size_;; size = std::max(maker_->smallest(), size - step)) {
    RulerSample sample = maker_->make(index, size, Draws(options_.seed, name + " sample " + std::to_string(index)));
    sample.length = tokens(sample.input + sample.answer_prefix) + kind_.new_tokens;
    if (sample.length <= options_.length) return sample;
    if (size == maker_->smallest()) {
      throw std::invalid_argument(name + ": sample " + std::to_string(index) + " has " + std::to_string(sample.length) +
                                  " tokens at its shortest; wanted a greater length");
    }
  }
}

std::string ruler_line(const RulerKind& kind, int64_t index, const RulerSample& sample) {
  const auto utf8 = [](const std::string& text) { return is_utf8(text) ? text : as_utf8(text); };
  nlohmann::ordered_json line = {{"task", kind.name},           {"index", index},
                                 {"input", utf8(sample.input)}, {"outputs", nlohmann::ordered_json::array()},
                                 {"length", sample.length},     {"answer_prefix", utf8(sample.answer_prefix)}};
  for (const std::string& output : sample.outputs) line["outputs"].push_back(utf8(output));
  return line.dump();
}

}  // namespace cyfa::eval
