// Tests the scorer: against logits known by construction, against a plain forward of each request for every kind of model, and that answers
// have the same bits in any batch and with any number of threads.
#include "cyfa/eval/scorer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

using namespace eval;

Json byte_json(Json config) {
  config.update(Json{{"vocab_size", 258}, {"bos_token_id", 256}, {"eos_token_id", 257}});
  return config;
}

// The logit of token b after token a in the model below.
double bigram(int64_t a, int64_t b) { return static_cast<double>((a * 7 + b * 13) % 11) / 4; }

// A model whose logits depend on the last token alone: mixers and MLPs add nothing, the embedding is the identity.
CausalLM bigram_model() {
  CausalLM model(ModelConfig::parse({{"model_type", "llama"},
                                     {"hidden_size", 258},
                                     {"num_hidden_layers", 1},
                                     {"num_attention_heads", 1},
                                     {"head_dim", 2},
                                     {"intermediate_size", 4},
                                     {"vocab_size", 258},
                                     {"rms_norm_eps", 1e-6},
                                     {"bos_token_id", 256},
                                     {"eos_token_id", 257}}));
  model.initialise(1);
  const at::NoGradGuard no_grad;
  for (at::Tensor& p : model.parameters()) p.zero_();
  model.parameters()[model.embedding_weight()].copy_(at::eye(258));
  model.parameters()[model.norm_weight()].fill_(1);
  at::Tensor& head = model.parameters()[model.head_weight()];
  const double norm = std::sqrt(1.0 / 258 + 1e-6);  // rms of a unit vector
  auto rows = head.accessor<float, 2>();
  for (int64_t b = 0; b < 258; ++b) {
    for (int64_t a = 0; a < 258; ++a) rows[b][a] = static_cast<float>(bigram(a, b) * norm);
  }
  return model;
}

double bigram_log_likelihood(int64_t a, int64_t b) {
  double sum = 0;
  for (int64_t other = 0; other < 258; ++other) sum += std::exp(bigram(a, other));
  return bigram(a, b) - std::log(sum);
}

int64_t bigram_best(int64_t a) {
  int64_t best = 0;
  for (int64_t b = 1; b < 258; ++b) best = bigram(a, b) > bigram(a, best) ? b : best;
  return best;
}

struct Setup {
  explicit Setup(CausalLM m, ScorerOptions options = {}, bool bos = false)
      : model(std::move(m)), encoder(tokenizer, model.config(), bos), engine(prepare_steps(model)), scorer(*engine, encoder, options) {}

  std::vector<std::vector<Response>> answer(const std::vector<std::vector<Request>>& documents) {
    std::vector<Prepared> prepared;
    for (const std::vector<Request>& requests : documents) prepared.push_back(scorer.prepare(requests));
    std::vector<std::vector<Response>> all;
    for (size_t begin = 0; begin < prepared.size();) {
      const size_t end = scorer.batch_end(prepared, begin);
      for (auto& one : scorer.answer(std::span(prepared).subspan(begin, end - begin))) all.push_back(std::move(one));
      begin = end;
    }
    return all;
  }

  CausalLM model;
  ByteTokenizer tokenizer;
  Encoder encoder;
  std::unique_ptr<StepEngine> engine;
  Scorer scorer;
};

TEST(Scorer, GivesKnownLogLikelihoods) {
  Setup s(bigram_model());
  const Response r = s.answer({{continuation_request("ab", "cd")}})[0][0];
  EXPECT_NEAR(r.log_likelihood, bigram_log_likelihood('b', 'c') + bigram_log_likelihood('c', 'd'), 1e-5);
  EXPECT_EQ(r.tokens, 2);
  EXPECT_FALSE(r.greedy);
  const Response empty = s.answer({{continuation_request("", "x")}})[0][0];
  EXPECT_NEAR(empty.log_likelihood, bigram_log_likelihood(256, 'x'), 1e-5);
}

// Of equal logits the first counts, as argmax has it.
TEST(Scorer, GreedyIsTheFirstOfTheLargest) {
  Setup s(bigram_model());
  const int64_t first = bigram_best('b'), second = bigram_best(first);
  ASSERT_LT(second, 128);
  const std::string best = {static_cast<char>(first), static_cast<char>(second)};
  std::string tied = best;
  tied[0] = static_cast<char>(first + 11);  // the same logit
  ASSERT_EQ(bigram('b', first), bigram('b', first + 11));
  const auto r =
      s.answer({{continuation_request("ab", best), continuation_request("ab", tied), continuation_request("ab", best + "z")}})[0];
  EXPECT_TRUE(r[0].greedy);
  EXPECT_FALSE(r[1].greedy);
  EXPECT_FALSE(r[2].greedy);
}

TEST(Scorer, GeneratesGreedilyUntilAStop) {
  Setup s(bigram_model());
  int64_t last = 'b';
  std::string text;
  for (int i = 0; i < 6; ++i) {
    last = bigram_best(last);
    text += static_cast<char>(last);
  }
  Request request = generate_request("ab", {}, 6);
  EXPECT_EQ(s.answer({{request}})[0][0].text, text);
  request.stop = {text.substr(3, 1)};
  EXPECT_EQ(s.answer({{request}})[0][0].text, text.substr(0, std::min<size_t>(3, text.find(text[3]))));
}

TEST(Scorer, CutsOnTheLeft) {
  Setup s(bigram_model(), {.max_length = 4});
  const auto r = s.answer({{continuation_request("abcdef", "gh"), continuation_request("ab", "cdef")}})[0];
  EXPECT_EQ(r[0].truncated, 3);  // the model is given defg
  EXPECT_EQ(r[1].truncated, 1);
  EXPECT_NEAR(r[0].log_likelihood, bigram_log_likelihood('f', 'g') + bigram_log_likelihood('g', 'h'), 1e-5);
  EXPECT_THROW(s.scorer.prepare({continuation_request("a", "bcdef")}), std::invalid_argument);
  EXPECT_THROW(s.scorer.prepare({generate_request("a", {}, 4)}), std::invalid_argument);
  const Response text = s.answer({{generate_request("abcdef", {}, 2)}})[0][0];
  EXPECT_EQ(text.truncated, 4);
}

TEST(Scorer, RollsOverAText) {
  Setup s(bigram_model(), {.max_length = 4}, true);
  const std::string text = "rolling text";
  double sum = bigram_log_likelihood(256, 256);  // BOS is scored once, after BOS
  int64_t last = 256;
  for (const char c : text) {
    sum += bigram_log_likelihood(last, c);
    last = c;
  }
  const Response r = s.answer({{rolling_request(text)}})[0][0];
  EXPECT_NEAR(r.log_likelihood, sum, 1e-4);
  EXPECT_EQ(r.tokens, 13);
  EXPECT_EQ(s.answer({{rolling_request("")}})[0][0].tokens, 1);
}

TEST(Scorer, RefusesDamagedWeights) {
  CausalLM model = bigram_model();
  {
    const at::NoGradGuard no_grad;
    model.parameters()[model.norm_weight()].fill_(std::numeric_limits<float>::quiet_NaN());
  }
  Setup s(std::move(model));
  EXPECT_THROW(s.answer({{continuation_request("a", "b")}}), std::runtime_error);
}

// Documents with shared beginnings, with none, and with one that is all of a request but its last token.
std::vector<std::vector<Request>> documents() {
  const std::string question = "Question: why do the leaves of trees fall in autumn?\nAnswer:";
  return {
      {continuation_request(question, " cold"), continuation_request(question, " they are tired of it"),
       continuation_request(question, " c")},
      {continuation_request("x", "y"), continuation_request("zz", "y")},
      {continuation_request("The trophy does not fit because the trophy", " is too big."),
       continuation_request("The trophy does not fit because the suitcase", " is too big.")},
      {rolling_request("A text that is longer than the model can see at once, so that there are windows. And more of it, and yet more.")},
      {continuation_request(question + question, "z")}};
}

class EveryModel : public testing::TestWithParam<ModelCase> {};

// The log-likelihood by a forward over the request alone.
double alone(const Setup& s, const std::vector<int64_t>& inputs, size_t first, const std::vector<int64_t>& targets) {
  const at::NoGradGuard no_grad;
  const Weights w = s.model.weights();
  const at::Tensor logits = s.model.head(w, s.model.forward(w, at::tensor(inputs, at::kLong).unsqueeze(0)).hidden).squeeze(0);
  const at::Tensor found = at::log_softmax(logits.to(at::kDouble), -1);
  double sum = 0;
  for (size_t i = 0; i < targets.size(); ++i) sum += found[static_cast<int64_t>(first + i)][targets[i]].item<double>();
  return sum;
}

TEST_P(EveryModel, SharedAndPackedRequestsEqualThoseAlone) {
  Setup s(small_model(byte_json(GetParam().config)), {.max_length = 80});
  const auto asked = documents();
  const auto found = s.answer(asked);
  for (size_t d = 0; d < asked.size(); ++d) {
    const Prepared p = s.scorer.prepare(asked[d]);
    std::vector<double> wanted(asked[d].size(), 0);
    for (const auto& group : p.groups) {
      for (const ScoredSequence& q : group) wanted[q.request] += alone(s, q.inputs, q.first, q.targets);
    }
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_NEAR(found[d][i].log_likelihood, wanted[i], 2e-5 * std::abs(wanted[i])) << d << " " << i;
  }
}

TEST_P(EveryModel, BatchesAndThreadsGiveEqualBits) {
  const auto asked = documents();
  std::vector<std::vector<Response>> first;
  const int threads = at::get_num_threads();
  for (const auto& [tokens, used] : {std::pair<int64_t, int>{1 << 20, 2}, {1 << 20, 1}, {1, 2}, {150, 1}}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, " << used << " threads");
    at::set_num_threads(used);
    Setup s(small_model(byte_json(GetParam().config)), {.max_length = 80, .batch_tokens = tokens});
    const auto found = s.answer(asked);
    at::set_num_threads(threads);
    if (first.empty()) first = found;
    for (size_t d = 0; d < asked.size(); ++d) {
      for (size_t i = 0; i < asked[d].size(); ++i) {
        EXPECT_EQ(found[d][i].log_likelihood, first[d][i].log_likelihood) << d << " " << i;
        EXPECT_EQ(found[d][i].greedy, first[d][i].greedy);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, testing::ValuesIn(model_cases()), [](const auto& model) { return model.param.name; });

// Sequences beyond a segment are read from state to state.
TEST(Scorer, LongSequencesAreReadInSegments) {
  Setup s(small_model(byte_json(small_config())));
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 4500; ++i) ids.push_back((i * i + i / 7) % 256);
  const Response r = s.answer({{tokens_request(ids)}})[0][0];
  ASSERT_EQ(r.each.size(), ids.size() - 1);
  const std::vector<int64_t> inputs(ids.begin(), ids.end() - 1), targets(ids.begin() + 1, ids.end());
  const double wanted = alone(s, inputs, 0, targets);
  EXPECT_NEAR(r.log_likelihood, wanted, 2e-5 * std::abs(wanted));
  EXPECT_THROW(s.scorer.prepare({tokens_request({5})}), std::invalid_argument);
}

}  // namespace
}  // namespace cyfa::test
