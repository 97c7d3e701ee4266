// Samples of RULER (Hsieh et al., 2024; NVIDIA/RULER at commit c3f5e3b): texts of a wanted length in tokens with something to be found in
// them. The prompts are RULER's to the character; what is drawn at random comes from a generator of our own (draws.h), so that samples do
// not depend on the machine. docs/evaluation.md lists the differences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cyfa/data/tokenizer.h"
#include "cyfa/eval/draws.h"
#include "cyfa/eval/haystack.h"

namespace cyfa::eval {

// One sample, with the fields of RULER's files. The prompt is input + answer_prefix.
struct RulerSample {
  std::string input;
  std::string answer_prefix;
  std::vector<std::string> outputs;  // what the answer must hold
  int64_t length = 0;                // tokens of the prompt, without BOS, and of the answer at most
};

// A document of a QA task's file, and a question about some of them.
struct QaSource {
  struct Question {
    std::string text;
    std::vector<std::string> answers;
    std::vector<int64_t> documents;  // that answer it
    std::vector<int64_t> related;    // of the same article: they come before other documents
  };
  std::vector<std::string> documents;  // sorted, without repetitions
  std::vector<Question> questions;
};
// SQuAD 2.0 (dev-v2.0.json, questions that have an answer) and HotpotQA (hotpot_dev_distractor_v1.json). `path` is for errors. Throw
// io::FileError.
QaSource read_squad(std::string_view json, const std::filesystem::path& path);
QaSource read_hotpotqa(std::string_view json, const std::filesystem::path& path);

// A task of RULER.
struct RulerKind {
  const char* name;
  const char* about;
  int64_t new_tokens;    // of an answer at most
  bool essay;            // hides needles in a haystack's sentences
  const char* qa_files;  // of a QA task: "squad" or "hotpotqa"; else null
  bool any = false;      // one of the outputs suffices
};
const std::vector<RulerKind>& ruler_kinds();
// Throws std::invalid_argument for an unknown name.
const RulerKind& ruler_kind(const std::string& name);

// The share of the outputs that occur in the generated text, or, with `any`, whether one does.
double ruler_score(const RulerKind& kind, const std::vector<std::string>& outputs, std::string_view generated);

// How one kind of task makes a sample. Larger sizes make longer texts.
class SampleMaker {
 public:
  virtual ~SampleMaker() = default;
  virtual int64_t smallest() const = 0;  // size
  virtual int64_t step() const = 0;      // by which RULER lowers the size of a sample that turns out too long
  virtual RulerSample make(int64_t index, int64_t size, Draws draws) const = 0;
};

// Counts the tokens of a text without special tokens.
class TokenCounter {
 public:
  explicit TokenCounter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  int64_t operator()(std::string_view text);

 private:
  const Tokenizer& tokenizer_;
  WordCache cache_;
  std::vector<uint32_t> ids_;
};

// The largest size from `smallest` on whose tokens are at most `most`, for a function that grows about linearly; nothing if the smallest
// has more. Few sizes are tried: the next ones lie close to where the line through two known ones meets the limit.
std::optional<int64_t> largest_size(int64_t smallest, int64_t most, const std::function<int64_t(int64_t size)>& tokens);

struct RulerOptions {
  int64_t length = 4096;                // tokens of prompt and answer together
  uint64_t seed = 42;                   // equal seeds give equal samples
  const Haystack* haystack = nullptr;   // of essay tasks; default: Haystack::provided(). Kept as a reference
  const QaSource* questions = nullptr;  // of QA tasks. Kept as a reference
};

// The samples of one task and length.
class RulerGenerator {
 public:
  // Finds the size of the samples. Keeps references to the tokenizer and to what `options` points to. Throws std::invalid_argument if no
  // sample is as short as `length`, and for a QA task without questions.
  RulerGenerator(const RulerKind& kind, const Tokenizer& tokenizer, const RulerOptions& options);
  ~RulerGenerator();

  const RulerKind& kind() const { return kind_; }
  int64_t length() const { return options_.length; }
  int64_t size() const { return size_; }  // words, lines, list entries or documents of a sample's haystack
  int64_t most_samples() const;           // questions of a QA task; else without limit

  // Sample `index`, from 0. It depends on the task, length, seed, haystack, tokenizer and index, not on other samples. Thread-safe.
  RulerSample sample(int64_t index) const;

 private:
  const RulerKind& kind_;
  const Tokenizer& tokenizer_;
  RulerOptions options_;
  std::unique_ptr<SampleMaker> maker_;
  int64_t size_ = 0;
};

// A line of RULER's JSON files: index, input, outputs, length, answer_prefix; and the name of the task.
std::string ruler_line(const RulerKind& kind, int64_t index, const RulerSample& sample);

}  // namespace cyfa::eval
