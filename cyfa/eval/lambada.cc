// LAMBADA: the last word of a passage, after the rest of it.
#include <algorithm>

#include "cyfa/eval/tasks.h"
#include "cyfa/io/file_error.h"

namespace cyfa::eval {
namespace {

class Lambada final : public Task {
 public:
  explicit Lambada(std::vector<std::string> passages) : passages_(std::move(passages)) {}

  int64_t size() const override { return static_cast<int64_t>(passages_.size()); }
  std::vector<Request> requests(int64_t i) const override {
    const std::string& text = passages_[static_cast<size_t>(i)];
    const size_t space = text.rfind(' ');
    return {continuation_request(text.substr(0, space), text.substr(space))};
  }
  std::vector<std::string> columns() const override { return {"log_likelihood", "acc"}; }
  std::vector<double> score(int64_t, std::span<const Response> responses) const override {
    return {responses[0].log_likelihood, responses[0].greedy ? 1.0 : 0.0};
  }
  std::vector<Metric> metrics(const Scores& scores) const override {
    return {mean_metric(scores, "acc"), perplexity_metric("perplexity", scores.column("log_likelihood"))};
  }

 private:
  std::vector<std::string> passages_;
};

}  // namespace

std::unique_ptr<Task> load_lambada(const TaskInput& input, const TaskKind& kind) {
  const std::filesystem::path path = input.files.find(kind.files.front());
  std::vector<std::string> passages;
  const auto add = [&](std::string passage) {
    if (passage.find(' ') == std::string::npos) throw RowError("is a passage of one word; wanted a last word after others");
    passages.push_back(std::move(passage));
  };
  if (path.string().find(".jsonl") != std::string::npos) {
    input.files.lines(path, [&](const Json& row) { add(text_field(row, "text")); });
  } else {
    input.files.text_lines(path, add);
  }
  return std::make_unique<Lambada>(std::move(passages));
}

}  // namespace cyfa::eval
