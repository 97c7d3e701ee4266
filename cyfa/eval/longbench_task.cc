// LongBench as tasks, from its files of JSON lines.
#include <algorithm>

#include "cyfa/eval/longbench.h"
#include "cyfa/eval/tasks.h"
#include "cyfa/io/file_error.h"

namespace cyfa::eval {
namespace {

constexpr int64_t kMostTokens = 7500;  // of a prompt, as LongBench has it for models of 8K tokens

struct Row {
  std::string context, input;
  std::vector<std::string> answers, classes;
};

class LongBench final : public Task {
 public:
  LongBench(const LongBenchKind& kind, std::vector<Row> rows, const Encoder& encoder, int64_t most)
      : kind_(kind), rows_(std::move(rows)), encoder_(encoder), most_(most) {}

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  std::vector<Request> requests(int64_t i) const override {
    const Row& row = rows_[static_cast<size_t>(i)];
    int64_t cut = 0;
    std::string prompt = without_middle(longbench_prompt(kind_, row.context, row.input), most_, encoder_, cut);
    std::vector<std::string> stop;
    if (kind_.ends_at_newline) stop.emplace_back("\n");
    Request request = generate_request(std::move(prompt), std::move(stop), kind_.new_tokens);
    request.may_truncate = false;  // the middle is cut, and encoding the rest again may add a token
    request.truncated = cut;
    return {std::move(request)};
  }
  std::vector<std::string> columns() const override { return {metric_name(kind_.metric)}; }
  std::vector<double> score(int64_t i, std::span<const Response> responses) const override {
    const Row& row = rows_[static_cast<size_t>(i)];
    return {longbench_score(kind_, responses[0].text.value(), row.answers, row.classes)};
  }
  std::string truncation() const override { return "middle"; }
  std::vector<Metric> metrics(const Scores& scores) const override { return {mean_metric(scores, metric_name(kind_.metric), 100)}; }

 private:
  const LongBenchKind& kind_;
  std::vector<Row> rows_;
  const Encoder& encoder_;
  int64_t most_;
};

const LongBenchKind& kind_named(const std::string& task) {
  const std::string name = task.substr(std::string("longbench_").size());
  return *std::find_if(longbench_kinds().begin(), longbench_kinds().end(), [&](const LongBenchKind& kind) { return name == kind.name; });
}

std::unique_ptr<Task> load(const TaskInput& input, const TaskKind& task) {
  const LongBenchKind& kind = kind_named(task.name);
  const int64_t most = std::min(*input.length, input.max_length - kind.new_tokens);
  if (most < 2) {
    throw std::invalid_argument(task.name + ": no room for a prompt: the model is given at most " + std::to_string(input.max_length) +
                                " tokens, of which the answer may take " + std::to_string(kind.new_tokens));
  }
  const std::filesystem::path path = input.files.find(task.files.front());
  std::vector<Row> rows;
  input.files.lines(path, [&](const Json& json) {
    Row row{text_field(json, "context"), text_field(json, "input"), list_field(json, "answers"), {}};
    if (row.answers.empty()) throw RowError("has no answers");
    if (kind.metric == LongBenchMetric::kClassification) row.classes = list_field(json, "all_classes");
    try {
      longbench_score(kind, "", row.answers, row.classes);
    } catch (const std::invalid_argument& error) {
      throw RowError(error.what());
    }
    rows.push_back(std::move(row));
  });
  if (rows.empty()) throw io::FileError(path, "holds no documents");
  return std::make_unique<LongBench>(kind, std::move(rows), input.encoder, most);
}

}  // namespace

std::vector<TaskKind> longbench_tasks() {
  std::vector<TaskKind> tasks;
  for (const LongBenchKind& kind : longbench_kinds()) {
    const std::string name = kind.name;
    TaskKind task{"longbench_" + name, std::string("LongBench: ") + kind.about, {}, load};
    if (kind.paper) task.groups = {"longbench"};
    task.files = {{{name + ".jsonl", "data/" + name + ".jsonl"},
                   "THUDM/LongBench (data.zip) on Hugging Face",
                   "JSON lines with context, input, answers, all_classes"}};
    task.length = kMostTokens;
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace cyfa::eval
