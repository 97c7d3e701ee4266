// Tests metrics and standard errors against values computed by Python as lm-evaluation-harness does.
#include "cyfa/eval/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cyfa::test {
namespace {

using namespace eval;

TEST(Metrics, MeanAndItsError) {
  const Scores scores({"acc"}, {{1}, {0}, {0}, {1}, {1}});
  const Metric m = mean_metric(scores, "acc");
  EXPECT_DOUBLE_EQ(m.value, 0.6);
  EXPECT_DOUBLE_EQ(*m.error, std::sqrt(0.6 * 0.4 / 4));
  EXPECT_DOUBLE_EQ(*mean_metric(scores, "acc", 100).error, 100 * *m.error);
  EXPECT_FALSE(mean_error(std::vector<double>{1}));
  EXPECT_THROW(scores.column("other"), std::logic_error);
  EXPECT_THROW(Scores({"a", "b"}, {{1}}), std::logic_error);
}

// The error is from random.Random(i).choices(...), i = 0 .. 99.
TEST(Metrics, PerplexityWithTheBootstrapOfPython) {
  const std::vector<double> found = {-1.5, -0.25, -3.0, -7.5, -0.5, -2.0, -4.25};
  const Metric m = perplexity_metric("perplexity", found);
  EXPECT_DOUBLE_EQ(m.value, 15.093824917000777);
  EXPECT_NEAR(*m.error, 30.554243804569033, 1e-9);
  EXPECT_FALSE(m.higher_is_better);
  EXPECT_FALSE(perplexity_metric("perplexity", std::vector<double>{-1}).error);
}

TEST(Metrics, WeightedPerplexities) {
  const std::vector<double> found = {-10, -20}, words = {3, 2};
  EXPECT_DOUBLE_EQ(weighted_perplexity("word_perplexity", found, words).value, std::exp(6.0));
  EXPECT_DOUBLE_EQ(bits_per_unit("bits_per_byte", found, words).value, 6 / std::log(2.0));
}

}  // namespace
}  // namespace cyfa::test
