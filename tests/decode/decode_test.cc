// Tests text streams, snapshots and generation.
#include <gtest/gtest.h>

#include <fstream>

#include "cyfa/decode/generator.h"
#include "cyfa/io/file_error.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

std::string streamed(TextStream& stream, const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += stream.add(std::string_view(&c, 1));
  return out + stream.finish();
}

TEST(TextStream, StopsBeforeTheStopText) {
  TextStream plain({});
  EXPECT_EQ(streamed(plain, "Grüße\xFF"), "Grüße\xEF\xBF\xBD");
  TextStream stop({"END", "\n\n"});
  EXPECT_EQ(streamed(stop, "one EN two\nthree END four"), "one EN two\nthree ");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.text(), "one EN two\nthree ");
  TextStream held({"abab"});
  EXPECT_EQ(streamed(held, "xabaabab!"), "xaba");
  TextStream unfinished({"abc"});
  EXPECT_EQ(streamed(unfinished, "zab"), "zab");
  TextStream empty({""});
  EXPECT_EQ(streamed(empty, "abc"), "abc");
}

TEST(TextStream, NeverShowsPartOfACharacterOrOfAStop) {
  TextStream stream({"ST"});
  EXPECT_EQ(stream.add("a\xE2\x82"), "a");
  EXPECT_EQ(stream.add("\xAC"), "\xE2\x82\xAC");
  EXPECT_EQ(stream.add("S"), "");
  EXPECT_EQ(stream.add("x"), "Sx");
}

Json byte_config() {
  Json config = small_config();
  config["vocab_size"] = 258;
  config["bos_token_id"] = 256;
  config["eos_token_id"] = 257;
  return config;
}

class Generation : public testing::Test {
 protected:
  CausalLM model_ = small_model(byte_config());
  ByteTokenizer tokenizer_;
  std::unique_ptr<StepEngine> engine_ = prepare_steps(model_);
  Generator generator_{*engine_, tokenizer_};

  Prompt prompt(const std::string& text) const { return {tokenizer_.encode(text), std::nullopt}; }
  static GenerateOptions options(int64_t tokens, double temperature = 0) {
    GenerateOptions o;
    o.max_tokens = tokens;
    o.sampling.temperature = temperature;
    o.ignore_eos = true;
    return o;
  }
};

TEST_F(Generation, ABatchGivesWhatEachPromptGivesAlone) {
  std::vector<Prompt> prompts;
  for (const char* text :
       {"a", "a longer prompt than the others, by far, so that several chunks of it are read one after another", "xyz", "\xFF\x00z"}) {
    prompts.push_back(prompt(text));
  }
  for (const double temperature : {0.0, 1.0}) {
    GenerateOptions o = options(40, temperature);
    o.prefill_chunk = 33;
    o.ignore_eos = false;
    const std::vector<Completion> together = generator_.run(prompts, o, true);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Completion alone = generator_.run({prompts[i]}, o, true).front();
      EXPECT_EQ(alone.ids, together[i].ids);
      EXPECT_EQ(alone.text, together[i].text);
      EXPECT_TRUE(at::equal(alone.snapshot.logits, together[i].snapshot.logits));
      for (size_t layer = 0; layer < alone.snapshot.state.layers.size(); ++layer) {
        for (size_t part = 0; part < alone.snapshot.state.layers[layer].size(); ++part) {
          EXPECT_TRUE(at::equal(alone.snapshot.state.layers[layer][part], together[i].snapshot.state.layers[layer][part]));
        }
      }
    }
  }
}

TEST_F(Generation, GoesOnFromASnapshotAsIfNothingHadHappened) {
  const Folder folder;
  const Completion whole = generator_.run({prompt("prefix")}, options(30)).front();
  const Completion first = generator_.run({prompt("prefix")}, options(13), true).front();
  save_snapshot(folder / "state", first.snapshot, model_);
  Prompt rest;
  rest.snapshot = load_snapshot(folder / "state", model_);
  const Completion second = generator_.run({rest}, options(17)).front();
  std::vector<int64_t> ids = first.ids;
  ids.insert(ids.end(), second.ids.begin(), second.ids.end());
  EXPECT_EQ(ids, whole.ids);
  EXPECT_EQ(second.cached_tokens, 6 + 13);
  EXPECT_EQ(second.prompt_tokens, 0);
  // The snapshot is not modified and can be used again.
  EXPECT_EQ(generator_.run({rest}, options(17)).front().ids, second.ids);
  // Continue it with more text.
  rest.ids = tokenizer_.encode(" more");
  EXPECT_EQ(generator_.run({rest}, options(5)).front().prompt_tokens, 5);
}

// The same for every kind of model.
class EveryKind : public testing::TestWithParam<ModelCase> {};

TEST_P(EveryKind, DecodesInBatchesAndFromSnapshots) {
  Json config = GetParam().config;
  config.update(Json{{"vocab_size", 258}, {"bos_token_id", 256}, {"eos_token_id", 257}});
  CausalLM model = small_model(config);
  const ByteTokenizer tokenizer;
  const auto engine = prepare_steps(model);
  Generator generator(*engine, tokenizer);
  GenerateOptions o;
  o.max_tokens = 20;
  o.prefill_chunk = 33;
  o.ignore_eos = true;
  std::vector<Prompt> prompts;
  for (const char* text :
       {"a", "a longer prompt than the others, by far, so that several chunks of it are read one after another", "xyz"}) {
    prompts.push_back({tokenizer.encode(text), std::nullopt});
  }
  const std::vector<Completion> together = generator.run(prompts, o, true);
  const Folder folder;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Completion alone = generator.run({prompts[i]}, o, true).front();
    EXPECT_EQ(alone.ids, together[i].ids);
    EXPECT_TRUE(at::equal(alone.snapshot.logits, together[i].snapshot.logits));
    const std::vector<ModelState> states = {alone.snapshot.state, together[i].snapshot.state};
    const ModelState both = ModelState::concatenate(states);
    for (const MixerState& layer : both.layers) {
      for (const at::Tensor& x : layer) EXPECT_TRUE(at::equal(x[0], x[1]));
    }
    GenerateOptions half = o;
    half.max_tokens = 9;
    const Completion first = generator.run({prompts[i]}, half, true).front();
    const std::string file = "state" + std::to_string(i);
    save_snapshot(folder / file, first.snapshot, model);
    Prompt rest;
    rest.snapshot = load_snapshot(folder / file, model);
    half.max_tokens = 11;
    std::vector<int64_t> ids = first.ids;
    const Completion second = generator.run({rest}, half).front();
    ids.insert(ids.end(), second.ids.begin(), second.ids.end());
    EXPECT_EQ(ids, alone.ids);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryKind, testing::ValuesIn(model_cases()), [](const auto& model) { return model.param.name; });

TEST_F(Generation, DamagedAndForeignSnapshotsAreRefused) {
  const Folder folder;
  save_snapshot(folder / "state", generator_.run({prompt("abc")}, options(3), true).front().snapshot, model_);
  EXPECT_THROW(load_snapshot(folder / "state", small_model(byte_config(), 4)), io::FileError);
  std::ifstream in(folder / "state", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  for (const size_t place : {bytes.size() / 2, bytes.size() - 1, bytes.size() * 3 / 4}) {
    std::string changed = bytes;
    changed[place] = static_cast<char>(changed[place] ^ 4);
    std::ofstream(folder / "changed", std::ios::binary) << changed;
    EXPECT_THROW(load_snapshot(folder / "changed", model_), io::FileError);
  }
  for (size_t i = 0; i < 20; ++i) {
    std::ofstream(folder / "cut", std::ios::binary) << bytes.substr(0, bytes.size() * i / 20);
    EXPECT_THROW(load_snapshot(folder / "cut", model_), io::FileError);
  }
  std::string version = bytes;
  version.replace(version.find("\"cyfa_state\":\"1\""), 16, "\"cyfa_state\":\"2\"");
  std::ofstream(folder / "version", std::ios::binary) << version;
  EXPECT_THROW(load_snapshot(folder / "version", model_), io::FileError);
}

TEST_F(Generation, EndsWhereItShould) {
  const Completion free = generator_.run({prompt("text")}, options(25)).front();
  EXPECT_EQ(free.reason, Completion::Reason::kLength);
  EXPECT_EQ(free.ids.size(), 25U);
  EXPECT_EQ(generator_.run({prompt("text")}, options(0)).front().ids.size(), 0U);
  GenerateOptions o = options(25);
  o.stop = {tokenizer_.piece(free.ids[4])};
  const Completion stopped = generator_.run({prompt("text")}, o).front();
  if (!o.stop[0].empty()) {
    EXPECT_EQ(stopped.reason, Completion::Reason::kStop);
    EXPECT_LE(stopped.ids.size(), 5U);
  }
  // A model whose most likely token is EOS.
  CausalLM ends = small_model(byte_config());
  ends.parameters().back().zero_();
  const Tokenizer& tokenizer = tokenizer_;
  GenerateOptions stop_at_end = options(10);
  stop_at_end.ignore_eos = false;
  Json config = byte_config();
  config["eos_token_id"] = Json::array({0, 257});  // with equal logits, the smallest id is chosen
  CausalLM zero(ModelConfig::parse(config));
  zero.parameters() = ends.parameters();
  const Completion at_once = Generator(*prepare_steps(zero), tokenizer).run({prompt("q")}, stop_at_end).front();
  EXPECT_EQ(at_once.reason, Completion::Reason::kEndOfText);
  EXPECT_TRUE(at_once.ids.empty());
}

TEST_F(Generation, StreamsWhatItReturns) {
  std::string shown;
  generator_.on_text = [&](size_t, const std::string& text) { shown += text; };
  EXPECT_EQ(generator_.run({prompt("stream")}, options(50, 1.0)).front().text, shown);
}

TEST_F(Generation, NothingToBeginWithIsAnError) { EXPECT_THROW(generator_.run({Prompt()}, options(5)), std::invalid_argument); }

}  // namespace
}  // namespace cyfa::test
