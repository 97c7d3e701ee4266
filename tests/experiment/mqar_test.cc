// MQAR: what an example looks like, that it depends on its seed alone, the order of queries, batches, score and learning rate.
#include "cyfa/train/mqar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "cyfa/ops/dense/cross_entropy.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

constexpr MqarTask kTask{.vocab_size = 128};
constexpr MqarSegment kSegment{.length = 64, .pairs = 8, .examples = 50};

// Every sentence of the definition, example by example.
TEST(Mqar, ExamplesAreAsDefined) {
  for (const bool random : {false, true}) {
    MqarTask task = kTask;
    task.random_non_queries = random;
    const MqarExamples e = mqar_examples(task, kSegment, 7);
    ASSERT_EQ(e.inputs.sizes(), (std::vector<int64_t>{50, 64}));
    EXPECT_GE(e.inputs.min().item<int>(), 0);
    EXPECT_LT(e.inputs.max().item<int>(), 128);
    const auto input = e.inputs.accessor<int, 2>(), target = e.targets.accessor<int, 2>();
    int64_t others = 0, zeros = 0;
    for (int64_t i = 0; i < 50; ++i) {
      std::map<int, int> pairs;
      std::set<int> values;
      for (int64_t k = 0; k < 8; ++k) {
        const int key = input[i][2 * k], value = input[i][2 * k + 1];
        EXPECT_TRUE(key >= 1 && key <= 63) << key;
        EXPECT_TRUE(value >= 64 && value <= 127) << value;
        EXPECT_TRUE(pairs.emplace(key, value).second) << "a key twice";
        EXPECT_TRUE(values.insert(value).second) << "a value twice";
      }
      std::set<int> asked;
      for (int64_t t = 0; t < 64; ++t) {
        if (target[i][t] == ops::kIgnore) {
          others += t >= 16 ? 1 : 0;
          zeros += t >= 16 && input[i][t] == 0 ? 1 : 0;
          continue;
        }
        EXPECT_GE(t, 16) << "a query among the pairs";
        EXPECT_EQ(t % 2, 0);
        EXPECT_EQ(pairs.at(input[i][t]), target[i][t]);
        EXPECT_TRUE(asked.insert(input[i][t]).second) << "a query twice";
      }
      EXPECT_EQ(asked.size(), 8U);
    }
    EXPECT_EQ(others, 50 * (48 - 8));
    if (random) {
      EXPECT_LT(zeros, others / 20);  // one in 128 is drawn
    } else {
      EXPECT_EQ(zeros, others);
    }
  }
}

TEST(Mqar, SeedsDecide) {
  const MqarExamples a = mqar_examples(kTask, kSegment, 7), b = mqar_examples(kTask, kSegment, 7), c = mqar_examples(kTask, kSegment, 8);
  EXPECT_TRUE(at::equal(a.inputs, b.inputs) && at::equal(a.targets, b.targets));
  EXPECT_FALSE(at::equal(a.inputs, c.inputs));
  // The first examples do not depend on how many there are. The numbers are those of this generator on any machine.
  MqarSegment few = kSegment;
  few.examples = 1;
  EXPECT_TRUE(at::equal(mqar_examples(kTask, few, 7).inputs[0], a.inputs[0]));
  const MqarExamples tiny = mqar_examples({.vocab_size = 16}, {.length = 8, .pairs = 2, .examples = 1}, 1);
  EXPECT_EQ(tiny.inputs.numel(), 8);
  EXPECT_EQ(tiny.targets.ne(ops::kIgnore).sum().item<int64_t>(), 2);
}

// With a = 1 all gaps are equally likely; with a = 0.01 a gap g has a weight of nearly 1 / (g + 1). One pair, so that nothing was drawn
// before.
TEST(Mqar, GapsHaveThePowerLaw) {
  constexpr MqarSegment one{.length = 18, .pairs = 1, .examples = 20000};  // gaps 0 .. 7
  for (const double power : {1.0, 0.01}) {
    MqarTask task = kTask;
    task.power = power;
    const at::Tensor places = mqar_examples(task, one, 3).targets.ne(ops::kIgnore).to(at::kDouble).mean(0);
    double sum = 0;
    for (int g = 0; g < 8; ++g) sum += std::pow(g + 1, power - 1);
    for (int g = 0; g < 8; ++g) {
      const double p = std::pow(g + 1, power - 1) / sum;
      EXPECT_NEAR(places[2 + 2 * g].item<double>(), p, 5 * std::sqrt(p * (1 - p) / 20000)) << "gap " << g << ", power " << power;
    }
  }
}

// With two pairs the second gap is drawn from what the first has left, with the weights of the rest: all ordered pairs of gaps, in the
// order of the keys.
TEST(Mqar, GapsAreDrawnOneAfterAnother) {
  constexpr MqarSegment two{.length = 10, .pairs = 2, .examples = 20000};  // gaps 0, 1, 2
  const MqarExamples e = mqar_examples({.vocab_size = 64, .power = 0.01, .random_non_queries = false}, two, 5);
  const auto input = e.inputs.accessor<int, 2>();
  double seen[3][3] = {};
  for (int64_t i = 0; i < two.examples; ++i) {
    int gaps[2] = {-1, -1};
    for (int g = 0; g < 3; ++g) {
      for (int k = 0; k < 2; ++k) {
        if (input[i][4 + 2 * g] == input[i][2 * k]) gaps[k] = g;
      }
    }
    ASSERT_TRUE(gaps[0] >= 0 && gaps[1] >= 0 && gaps[0] != gaps[1]);
    seen[gaps[0]][gaps[1]] += 1.0 / static_cast<double>(two.examples);
  }
  const auto weight = [](int g) { return std::pow(g + 1, 0.01 - 1); };
  const double all = weight(0) + weight(1) + weight(2);
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      const double p = a == b ? 0 : weight(a) / all * weight(b) / (all - weight(a));
      EXPECT_NEAR(seen[a][b], p, 5 * std::sqrt(p * (1 - p) / 20000)) << "gaps " << a << " and " << b;
    }
  }
}

TEST(Mqar, BatchesNeverMixSegments) {
  const MqarData data(kTask, {{64, 8, 10}, {32, 4, 5}}, 4, 1);
  ASSERT_EQ(data.batches(), 3 + 2);
  EXPECT_EQ(data.tokens(), 64 * 10 + 32 * 5);
  const std::vector<std::vector<int64_t>> sizes = {{4, 64}, {4, 64}, {2, 64}, {4, 32}, {1, 32}, {4, 64}};
  for (size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(data.at(static_cast<int64_t>(i)).inputs.sizes(), sizes[i]) << i;
  EXPECT_TRUE(at::equal(data.at(0).inputs, data.at(5).inputs));  // the second pass
  EXPECT_TRUE(at::equal(data.at(1).inputs[0], data.examples(0).inputs[4].to(at::kLong)));
  const MqarData other(kTask, {{64, 8, 10}, {32, 4, 5}}, 4, 2);
  EXPECT_FALSE(at::equal(data.at(0).inputs, other.at(0).inputs));
  EXPECT_FALSE(at::equal(data.examples(0).inputs[0], MqarData(kTask, {{32, 4, 5}, {64, 8, 10}}, 4, 1).examples(1).inputs[0]));
}

// The score beside the definition, from the logits of each example by itself.
TEST(Mqar, ScoreCountsAnswers) {
  Json config = small_config();
  config["vocab_size"] = 128;
  CausalLM model = small_model(config);
  const MqarData data(kTask, {{32, 4, 4}, {16, 2, 2}}, 4, 1);
  const at::NoGradGuard no_grad;
  double pooled = 0;
  std::vector<double> by_segment;
  for (size_t s = 0; s < 2; ++s) {
    const MqarExamples& e = data.examples(s);
    double sum = 0;
    for (int64_t i = 0; i < e.inputs.size(0); ++i) {
      const Weights w = model.weights();
      const at::Tensor answers = model.head(w, model.forward(w, e.inputs[i].unsqueeze(0).to(at::kLong)).hidden)[0].argmax(-1);
      double right = 0, asked = 0;
      for (int64_t t = 0; t < e.inputs.size(1); ++t) {
        if (e.targets[i][t].item<int>() == ops::kIgnore) continue;
        ++asked;
        right += answers[t].item<int64_t>() == e.targets[i][t].item<int>() ? 1 : 0;
      }
      sum += right / asked;
      pooled += right / asked / 6;
    }
    by_segment.push_back(sum / static_cast<double>(e.inputs.size(0)));
  }
  const MqarScore score = mqar_score(model, model.weights(), data, 3);
  ASSERT_EQ(score.segments.size(), 2U);
  for (size_t s = 0; s < 2; ++s) EXPECT_NEAR(score.segments[s], by_segment[s], 1e-12);
  EXPECT_NEAR(score.pooled, pooled, 1e-12);
}

TEST(Mqar, LearningRateFallsByEpochs) {
  EXPECT_DOUBLE_EQ(mqar_learning_rate(0.01, 0, 64), 0.01);
  EXPECT_NEAR(mqar_learning_rate(0.01, 32, 64), 0.005, 1e-12);
  EXPECT_GT(mqar_learning_rate(0.01, 63, 64), 0);
}

TEST(Mqar, ImpossibleSizesAreRefused) {
  const auto refusal = [](MqarTask task, const MqarSegment& s) -> std::string {
    try {
      mqar_examples(task, s, 1);
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal(kTask, {.length = 30, .pairs = 8, .examples = 1}).find("length is 30, wanted at least 4 times the 8 pairs"),
            std::string::npos);
  EXPECT_NE(refusal(kTask, {.length = 33, .pairs = 8, .examples = 1}).find("even"), std::string::npos);
  EXPECT_NE(refusal(kTask, {.length = 128, .pairs = 8, .examples = 1}).find("less than vocab_size, 128"), std::string::npos);
  EXPECT_NE(refusal(kTask, {.length = 64, .pairs = 0, .examples = 1}).find("pairs is 0"), std::string::npos);
  EXPECT_NE(refusal(kTask, {.length = 64, .pairs = 4, .examples = 0}).find("examples is 0"), std::string::npos);
  EXPECT_NE(refusal({.vocab_size = 3}, {}).find("vocab_size is 3"), std::string::npos);
  EXPECT_THROW(MqarData(kTask, {}, 4, 1), std::invalid_argument);
}

}  // namespace
}  // namespace cyfa::test
