// Tests generation in batches smaller than the list of prompts, interruption, and sampling across a snapshot.
#include <gtest/gtest.h>

#include "cyfa/decode/generator.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

Json byte_config(Json config) {
  config.update(Json{{"vocab_size", 258}, {"bos_token_id", 256}, {"eos_token_id", 257}});
  return config;
}

// For every kind of model, KV caches included: a row that ends takes the next prompt.
class Batches : public testing::TestWithParam<ModelCase> {};

TEST_P(Batches, AnySizeGivesTheSameTexts) {
  CausalLM model = small_model(byte_config(GetParam().config));
  const ByteTokenizer tokenizer;
  const auto engine = prepare_steps(model);
  Generator generator(*engine, tokenizer);
  GenerateOptions o;
  o.max_tokens = 14;
  o.prefill_chunk = 33;
  o.sampling.temperature = 1;
  o.stop = {"a", "e", "\x90", "7"};  // texts end after different numbers of tokens
  o.ignore_eos = true;
  std::vector<Prompt> prompts;
  for (const char* text : {"a", "a longer prompt than the others, read in two chunks", "xyz", "pq", "one more", "z"}) {
    prompts.push_back({tokenizer.encode(text), std::nullopt});
  }
  const std::vector<Completion> whole = generator.run(prompts, o, true);
  for (const int64_t batch : {1, 2, 4, 100}) {
    SCOPED_TRACE(batch);
    o.batch = batch;
    std::vector<size_t> ended;
    generator.on_done = [&](size_t prompt, const Completion& c) {
      ended.push_back(prompt);
      EXPECT_EQ(c.ids, whole[prompt].ids);
    };
    const std::vector<Completion> parts = generator.run(prompts, o, batch == 2);
    EXPECT_EQ(generator.times().batch, std::min<int64_t>(batch, 6));
    EXPECT_EQ(ended.size(), prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(parts[i].ids, whole[i].ids) << i;
      EXPECT_EQ(parts[i].text, whole[i].text);
      EXPECT_EQ(parts[i].reason, whole[i].reason);
      EXPECT_EQ(parts[i].prompt_tokens, static_cast<int64_t>(prompts[i].ids.size()));
      if (batch != 2) continue;
      EXPECT_EQ(parts[i].snapshot.ids, whole[i].snapshot.ids);
      EXPECT_TRUE(at::equal(parts[i].snapshot.logits, whole[i].snapshot.logits)) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Batches, testing::ValuesIn(model_cases()), [](const auto& model) { return model.param.name; });

class Interruption : public testing::Test {
 protected:
  CausalLM model_ = small_model(byte_config(small_config()));
  ByteTokenizer tokenizer_;
  std::unique_ptr<StepEngine> engine_ = prepare_steps(model_);
  Generator generator_{*engine_, tokenizer_};
  GenerateOptions options_ = [] {
    GenerateOptions o;
    o.max_tokens = 30;
    o.sampling.temperature = 1;
    o.sampling.repetition_penalty = 1.2;
    o.sampling.seed = 4;
    o.ignore_eos = true;
    return o;
  }();

  Prompt prompt(const std::string& text) const { return {tokenizer_.encode(text), std::nullopt}; }
};

// The random numbers belong to positions: a sampled text goes on from a snapshot as if nothing had happened.
TEST_F(Interruption, LosesNothingOfASampledText) {
  const Completion whole = generator_.run({prompt("text")}, options_).front();
  ASSERT_EQ(whole.ids.size(), 30U);
  int calls = 0;
  generator_.should_stop = [&] { return ++calls == 12; };
  std::string shown;
  generator_.on_text = [&](size_t, const std::string& text) { shown += text; };
  const Completion first = generator_.run({prompt("text")}, options_, true).front();
  EXPECT_EQ(first.reason, Completion::Reason::kInterrupted);
  EXPECT_EQ(first.text, shown);
  ASSERT_GT(first.ids.size(), 5U);
  ASSERT_LT(first.ids.size(), 20U);
  EXPECT_EQ(first.snapshot.ids.size(), 4 + first.ids.size());
  generator_.should_stop = {};
  Prompt rest;
  rest.snapshot = first.snapshot;
  options_.max_tokens = 30 - static_cast<int64_t>(first.ids.size());
  std::vector<int64_t> ids = first.ids;
  const Completion second = generator_.run({rest}, options_).front();
  ids.insert(ids.end(), second.ids.begin(), second.ids.end());
  EXPECT_EQ(ids, whole.ids);
}

TEST_F(Interruption, ReadsTheFirstPromptAtLeast) {
  const Completion whole = generator_.run({prompt("text")}, options_).front();
  generator_.should_stop = [] { return true; };
  const Completion first = generator_.run({prompt("text"), prompt("other")}, options_, true).front();
  EXPECT_EQ(first.ids, (std::vector<int64_t>{whole.ids[0]}));
  EXPECT_EQ(first.reason, Completion::Reason::kInterrupted);
  EXPECT_EQ(first.snapshot.ids.size(), 5U);
  EXPECT_TRUE(first.snapshot.logits.defined());
}

TEST_F(Interruption, LeavesOutPromptsThatHaveNotBegun) {
  options_.batch = 2;
  int calls = 0;
  generator_.should_stop = [&] { return ++calls > 45; };  // during the second pair
  std::vector<std::pair<size_t, std::string>> ended;
  generator_.on_done = [&](size_t i, const Completion& c) { ended.emplace_back(i, reason_name(c.reason)); };
  generator_.run({prompt("a"), prompt("b"), prompt("c"), prompt("d"), prompt("e")}, options_);
  using Ended = std::vector<std::pair<size_t, std::string>>;
  EXPECT_EQ(ended, (Ended{{0, "length"}, {1, "length"}, {2, "interrupted"}, {3, "interrupted"}}));
}

TEST_F(Interruption, ChecksPromptsBeforeItBegins) {
  bool began = false;
  generator_.on_text = [&](size_t, const std::string&) { began = true; };
  EXPECT_THROW(generator_.run({prompt("a"), Prompt()}, options_), std::invalid_argument);
  EXPECT_FALSE(began);
  EXPECT_TRUE(generator_.run({}, options_).empty());
  options_.max_tokens = 0;
  EXPECT_EQ(generator_.run({prompt("a"), prompt("b")}, options_).size(), 2U);
}

TEST_F(Interruption, DamagedWeightsAreAnError) {
  model_.parameters()[model_.norm_weight()].fill_(NAN);
  const auto engine = prepare_steps(model_);
  EXPECT_THROW(Generator(*engine, tokenizer_).run({prompt("a")}, options_), std::runtime_error);
}

}  // namespace
}  // namespace cyfa::test
