// See needles.h.
#include "cyfa/experiment/needles.h"

#include "cyfa/eval/evaluation.h"
#include "cyfa/eval/ruler.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::experiment {
namespace {

// Texts that are generated together: a small model's step takes as long for one as for many.
constexpr int64_t kTogether = 128;

std::string joined(const std::vector<std::string>& values) {
  std::string all;
  for (const std::string& value : values) all += (all.empty() ? "" : ", ") + value;
  return all;
}

// The samples of one task and length.
class Needles final : public eval::Task {
 public:
  Needles(const std::string& task, int64_t length, int64_t samples, uint64_t seed, const Tokenizer& tokenizer)
      : samples_(samples), generator_(eval::ruler_kind(task), tokenizer, {.length = length, .seed = seed}) {}

  int64_t size() const override { return samples_; }
  std::vector<eval::Request> requests(int64_t i) const override {
    const eval::RulerSample sample = generator_.sample(i);
    const std::string prompt = sample.input + sample.answer_prefix;
    eval::Request text = eval::generate_request(prompt, {}, generator_.kind().new_tokens);
    text.may_truncate = false;
    std::vector<eval::Request> all = {std::move(text)};
    if (!compares()) return all;
    // In the words of the needle: "... is: VALUE."
    for (const int64_t of : {i, i + 1}) {
      const std::vector<std::string> values = of == i ? sample.outputs : generator_.sample(of).outputs;
      all.push_back(eval::continuation_request(prompt, ": " + joined(values)));
    }
    return all;
  }
  std::vector<std::string> columns() const override {
    return compares() ? std::vector<std::string>{"found", "prefers"} : std::vector<std::string>{"found"};
  }
  std::vector<double> score(int64_t i, std::span<const eval::Response> responses) const override {
    std::vector<double> scores = {eval::ruler_score(generator_.kind(), generator_.sample(i).outputs, responses[0].text.value())};
    if (compares()) scores.push_back(responses[1].log_likelihood > responses[2].log_likelihood ? 1 : 0);
    return scores;
  }
  std::vector<eval::Metric> metrics(const eval::Scores& scores) const override {
    std::vector<eval::Metric> all;
    for (const std::string& column : columns()) all.push_back(eval::mean_metric(scores, column, 100));
    return all;
  }
  std::string truncation() const override { return "none"; }

 private:
  bool compares() const { return generator_.length() <= kMostCompared; }

  int64_t samples_;
  eval::RulerGenerator generator_;
};

}  // namespace

std::optional<Json> find_needles(const NeedleSearch& search, const std::function<void(int64_t done, int64_t all)>& on_progress,
                                 const std::function<bool()>& should_stop) {
  const Json& plan = search.needles;
  const auto samples = plan["samples"].get<int64_t>();
  const auto seed = plan["seed"].get<uint64_t>();
  CausalLM model = load_checkpoint(search.checkpoint, {std::nullopt, at::Device(search.device), false});
  check_vocabulary(*search.tokenizer, model.config());
  const eval::Encoder encoder(*search.tokenizer, model.config(), search.bos);
  const std::unique_ptr<StepEngine> engine = prepare_steps(model, {.compute = search.compute});
  // Every sample is read whole: none of its tokens is left out.
  eval::Scorer scorer(*engine, encoder, {.max_length = int64_t{1} << 40, .batch_tokens = 32768, .batch_sequences = kTogether});
  scorer.should_stop = should_stop;
  std::filesystem::create_directories(search.kept);
  const auto all = static_cast<int64_t>(plan["tasks"].size() * plan["lengths"].size()) * samples;
  int64_t before = 0;
  Json result = Json::object();
  for (const Json& name : plan["tasks"]) {
    Json rows = Json::array();
    for (const Json& length : plan["lengths"]) {
      const std::string task = name.get<std::string>() + "@" + length.dump();
      const Needles needles(name.get<std::string>(), length.get<int64_t>(), samples, seed, *search.tokenizer);
      const eval::EvaluationOptions options{.folder = search.kept, .identity = {{"needles", plan}}};
      const eval::TaskResult found = evaluate(task, needles, scorer, options, [&](const eval::EvaluationProgress& p) {
        if (on_progress) on_progress(before + p.done, all);
      });
      if (found.metrics.empty()) return std::nullopt;
      before += samples;
      Json row = {{"length", length}};
      for (const eval::Metric& m : found.metrics) {
        row[m.name] = m.value;
        row[m.name + "_error"] = m.error ? Json(*m.error) : Json(nullptr);
      }
      rows.push_back(std::move(row));
    }
    result[name.get<std::string>()] = std::move(rows);
  }
  return result;
}

}  // namespace cyfa::experiment
