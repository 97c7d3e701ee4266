// Tests runs: an interrupted one goes on to the same figures, and results of another model are refused.
#include "cyfa/eval/evaluation.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cyfa/io/file_error.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

using namespace eval;

std::vector<std::string> every_byte() {
  std::vector<std::string> all;
  for (int byte = 0; byte < 256; ++byte) all.emplace_back(1, static_cast<char>(byte));
  return all;
}

// Forty texts of different lengths. Two ask for generated texts.
class Letters final : public Task {
 public:
  int64_t size() const override { return 40; }
  std::vector<Request> requests(int64_t i) const override {
    const std::string text(static_cast<size_t>(1 + i * 7 % 40), static_cast<char>('a' + i % 26));
    if (i == 17) return {generate_request(text, {}, 5)};
    if (i == 18) return {generate_request(text, every_byte(), 5)};  // an empty text
    return {continuation_request(text, "x"), continuation_request(text, "yz")};
  }
  std::vector<std::string> columns() const override { return {"score"}; }
  std::vector<double> score(int64_t, std::span<const Response> r) const override {
    return {r[0].text ? static_cast<double>(r[0].text->size()) : r[0].log_likelihood + r.back().log_likelihood};
  }
  std::vector<Metric> metrics(const Scores& scores) const override { return {mean_metric(scores, "score")}; }
};

class Runs : public testing::Test {
 protected:
  Runs()
      : model_(small_model([] {
          Json config = small_config();
          config.update(Json{{"vocab_size", 258}, {"bos_token_id", 256}, {"eos_token_id", 257}});
          return config;
        }())),
        encoder_(tokenizer_, model_.config(), true),
        engine_(prepare_steps(model_)) {
    std::filesystem::create_directories(out_);
  }

  TaskResult run(int64_t batch_tokens, int stop_after = 1 << 20, int64_t limit = 0) {
    Scorer scorer(*engine_, encoder_, {.batch_tokens = batch_tokens});
    int asked = 0;
    scorer.should_stop = [&] { return asked++ >= stop_after; };
    return evaluate("letters", Letters(), scorer, {.limit = limit, .folder = keeps_ ? out_ : "", .identity = identity_});
  }

  Folder folder_;
  std::filesystem::path out_ = folder_ / "out", file_ = out_ / "samples_letters.jsonl";
  CausalLM model_;
  ByteTokenizer tokenizer_;
  Encoder encoder_;
  std::unique_ptr<StepEngine> engine_;
  Json identity_ = {{"model_hash", "1"}};
  bool keeps_ = true;
};

TEST_F(Runs, InterruptedOnesGoOnToTheSameFigures) {
  keeps_ = false;
  const TaskResult whole = run(200);
  EXPECT_EQ(whole.documents, 40);
  keeps_ = true;
  EXPECT_TRUE(run(50, 14).metrics.empty());
  std::ofstream(file_, std::ios::app) << "{\"document\": 3, \"sco";  // a killed process leaves half a line
  EXPECT_TRUE(run(50, 8).metrics.empty());
  const TaskResult rest = run(50);
  EXPECT_GT(rest.resumed, 0);
  EXPECT_LT(rest.resumed, 40);
  EXPECT_EQ(rest.metrics[0].value, whole.metrics[0].value);
  EXPECT_EQ(*rest.metrics[0].error, *whole.metrics[0].error);
  EXPECT_EQ(rest.tokens, whole.tokens);
  const TaskResult again = run(200);
  EXPECT_EQ(again.resumed, 40);
  EXPECT_EQ(again.metrics[0].value, whole.metrics[0].value);
}

TEST_F(Runs, AnEmptyTextIsKeptAsAText) {
  run(200);
  std::ifstream file(file_);
  int texts = 0;
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    if (!row.contains("document") || (row["document"] != 17 && row["document"] != 18)) continue;
    EXPECT_FALSE(row.contains("log_likelihoods")) << line;
    EXPECT_EQ(row["texts"][0].get<std::string>().empty(), row["document"] == 18) << line;
    ++texts;
  }
  EXPECT_EQ(texts, 2);
}

TEST_F(Runs, ALimitTakesTheFirstDocuments) {
  const TaskResult some = run(200, 1 << 20, 5);
  EXPECT_EQ(some.documents, 5);
  EXPECT_EQ(some.available, 40);
  EXPECT_EQ(run(200).resumed, 5);
}

TEST_F(Runs, ResultsOfAnotherModelAreRefused) {
  run(200, 1 << 20, 5);
  identity_["model_hash"] = "2";
  try {
    run(200);
    FAIL();
  } catch (const io::FileError& error) {
    EXPECT_NE(std::string(error.what()).find("model_hash"), std::string::npos);
  }
  // What only the earlier run had is a difference, too.
  identity_ = {{"model_hash", "1"}, {"haystack", "3"}};
  std::filesystem::remove(file_);
  run(200, 1 << 20, 5);
  identity_.erase("haystack");
  try {
    run(200);
    FAIL();
  } catch (const io::FileError& error) {
    EXPECT_NE(std::string(error.what()).find("haystack"), std::string::npos);
  }
  std::ofstream(file_) << "no JSON\n";
  EXPECT_THROW(run(200), io::FileError);
}

}  // namespace
}  // namespace cyfa::test
