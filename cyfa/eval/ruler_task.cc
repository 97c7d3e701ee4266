// RULER as tasks: samples that are generated, or read from files in RULER's format.
#include <algorithm>
#include <filesystem>

#include "cyfa/data/text_source.h"
#include "cyfa/eval/ruler.h"
#include "cyfa/eval/tasks.h"
#include "cyfa/io/file_error.h"

namespace cyfa::eval {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSamples = 500;  // of RULER, for each task and length
constexpr const char* kNames = "niah_single_1 ... qa_2";

// What generated samples and samples from a file have in common.
class RulerTask : public Task {
 public:
  std::vector<Request> requests(int64_t i) const override {
    const RulerSample s = sample(i);
    Request request = generate_request(s.input + s.answer_prefix, {}, kind().new_tokens);
    request.may_truncate = false;  // the needle may be anywhere
    return {std::move(request)};
  }
  std::vector<std::string> columns() const override { return {metric()}; }
  std::vector<double> score(int64_t i, std::span<const Response> responses) const override {
    return {ruler_score(kind(), sample(i).outputs, responses[0].text.value())};
  }
  std::vector<Metric> metrics(const Scores& scores) const override { return {mean_metric(scores, metric(), 100)}; }
  std::string truncation() const override { return "none"; }
  std::string sample_line(int64_t i) const override { return ruler_line(kind(), i, sample(i)); }

 protected:
  virtual const RulerKind& kind() const = 0;
  virtual RulerSample sample(int64_t i) const = 0;

 private:
  std::string metric() const { return kind().any ? "string_match_part" : "string_match_all"; }
};

class GeneratedRuler final : public RulerTask {
 public:
  GeneratedRuler(const RulerKind& kind, const TaskInput& input, std::optional<Haystack> haystack, std::optional<QaSource> questions)
      : haystack_(std::move(haystack)),
        questions_(std::move(questions)),
        generator_(kind, input.encoder.tokenizer(),
                   {.length = *input.length,
                    .seed = input.seed,
                    .haystack = haystack_ ? &*haystack_ : nullptr,
                    .questions = questions_ ? &*questions_ : nullptr}),
        size_(std::min(std::max(kSamples, input.limit), generator_.most_samples())) {}

  int64_t size() const override { return size_; }

 protected:
  const RulerKind& kind() const override { return generator_.kind(); }
  RulerSample sample(int64_t i) const override { return generator_.sample(i); }

 private:
  std::optional<Haystack> haystack_;
  std::optional<QaSource> questions_;
  RulerGenerator generator_;
  int64_t size_;
};

class RulerFile final : public RulerTask {
 public:
  RulerFile(const RulerKind& kind, std::vector<RulerSample> samples) : kind_(kind), samples_(std::move(samples)) {}

  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }

 protected:
  const RulerKind& kind() const override { return kind_; }
  RulerSample sample(int64_t i) const override { return samples_[static_cast<size_t>(i)]; }

 private:
  const RulerKind& kind_;
  std::vector<RulerSample> samples_;
};

// The documents of a text file, of a file of JSON lines with "text" or of a folder of them, one after the other.
Haystack read_haystack(const fs::path& path, DataFiles& files) {
  PassedOver passed;
  std::string text;
  for (const InputFile& file : find_inputs({path.string()}, passed)) {
    if (file.lines) {
      files.lines(file.path, [&](const Json& row) { text += text_field(row, "text") + "\n"; });
    } else {
      text += files.text(file.path) + "\n";
    }
  }
  try {
    return Haystack(text);
  } catch (const std::invalid_argument& error) {
    throw io::FileError(path, error.what());
  }
}

std::unique_ptr<Task> load_generated(const TaskInput& input, const TaskKind& task) {
  const RulerKind& kind = ruler_kind(task.name);
  std::optional<Haystack> haystack;
  if (kind.essay && !input.haystack.empty()) haystack = read_haystack(input.haystack, input.files);
  if (kind.essay && input.haystack.empty()) input.files.add_hash("the haystack that comes with the program", Haystack::provided().hash());
  std::optional<QaSource> questions;
  if (kind.qa_files != nullptr) {
    const fs::path path = input.files.find(task.files.front());
    const std::string text = input.files.text(path);
    questions = kind.qa_files == std::string("squad") ? read_squad(text, path) : read_hotpotqa(text, path);
  }
  return std::make_unique<GeneratedRuler>(kind, input, std::move(haystack), std::move(questions));
}

// RULER writes a task's samples to TASK/validation.jsonl, `cyfa eval --save-samples` to TASK-LENGTH.jsonl with "task" in every line.
const RulerKind& kind_of_file(const fs::path& path, const Json& row) {
  const auto named = row.find("task");
  if (named != row.end()) return ruler_kind(text_field(row, "task"));
  for (const std::string& name : {path.stem().string(), path.parent_path().filename().string()}) {
    for (const RulerKind& kind : ruler_kinds()) {
      if (name == kind.name) return kind;
    }
  }
  throw RowError(std::string("does not say which task it is of; wanted \"task\", or the task's name (") + kNames +
                 ") as that of the file or its folder");
}

std::unique_ptr<Task> load_file(const TaskInput& input, const TaskKind&) {
  const fs::path path = input.argument;
  const RulerKind* kind = nullptr;
  std::vector<RulerSample> samples;
  input.files.lines(path, [&](const Json& row) {
    RulerSample sample;
    sample.input = text_field(row, "input");
    sample.outputs = list_field(row, "outputs");
    if (sample.outputs.empty()) throw RowError("has no outputs");
    if (row.contains("answer_prefix")) sample.answer_prefix = text_field(row, "answer_prefix");
    if (row.contains("length")) sample.length = integer_field(row, "length");
    try {
      const RulerKind& own = kind_of_file(path, row);
      if (kind != nullptr && kind != &own) throw RowError("is of another task than the lines before it; wanted a file for each task");
      kind = &own;
    } catch (const std::invalid_argument& error) {
      throw RowError(error.what());
    }
    samples.push_back(std::move(sample));
  });
  if (samples.empty()) throw io::FileError(path, "holds no samples");
  return std::make_unique<RulerFile>(*kind, std::move(samples));
}

const TaskFile kSquad = {{"squad.json", "dev-v2.0.json"}, "https://rajpurkar.github.io/SQuAD-explorer (dev-v2.0.json)", "SQuAD 2.0"};
const TaskFile kHotpotqa = {
    {"hotpotqa.json", "hotpot_dev_distractor_v1.json"}, "https://hotpotqa.github.io (hotpot_dev_distractor_v1.json)", "HotpotQA"};

}  // namespace

std::vector<TaskKind> ruler_tasks() {
  std::vector<TaskKind> tasks;
  for (const RulerKind& kind : ruler_kinds()) {
    const std::string name = kind.name;
    TaskKind task{name, std::string("RULER: ") + kind.about, {"ruler"}, load_generated};
    if (name.starts_with("niah")) task.groups.emplace_back("niah");
    if (name.starts_with("niah_single") || name == "niah_multikey_1") task.groups.emplace_back("needles");
    if (kind.qa_files != nullptr) task.files = {kind.qa_files == std::string("squad") ? kSquad : kHotpotqa};
    task.length = 4096;
    tasks.push_back(std::move(task));
  }
  TaskKind file{"ruler_file", "RULER: the samples of a file in RULER's format", {}, load_file};
  file.argument = "FILE";
  tasks.push_back(std::move(file));
  return tasks;
}

}  // namespace cyfa::eval
