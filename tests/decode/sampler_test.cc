// Tests sampling: its arithmetic, the cuts and the distribution of draws, and the sampler of a batch.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "cyfa/decode/batch_sampler.h"
#include "cyfa/kernels/sampling/sampling.h"

namespace cyfa::test {
namespace {

std::map<int64_t, int> draws(const SamplingOptions& options, const std::vector<float>& logits, int count = 4000) {
  std::map<int64_t, int> seen;
  for (int i = 0; i < count; ++i) ++seen[sample(options, logits, i)];
  return seen;
}

TEST(Sampling, RandomBitsAreThoseOfPhilox) {
  EXPECT_EQ(sampling::random_bits(0, 0), 0xe169c58d6627e8d5U);  // the generator's published vector for key and counter 0
  EXPECT_NE(sampling::random_bits(0, 1), sampling::random_bits(1, 0));
  EXPECT_NE(sampling::random_bits(0, uint64_t{1} << 32), sampling::random_bits(0, 0));
  EXPECT_NE(sampling::random_bits(uint64_t{1} << 32, 0), sampling::random_bits(0, 0));
}

TEST(Sampling, ProductsAreExact) {
  for (const uint64_t a : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{0x123456789abcdef0}, uint64_t{1} << 63}) {
    for (const uint64_t b : {uint64_t{3}, ~uint64_t{0}, uint64_t{0xfedcba9876543210}, uint64_t{0xffffffff}}) {
      __extension__ using Wide = unsigned __int128;
      EXPECT_EQ(sampling::high_product(a, b), static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64));
    }
  }
}

TEST(Sampling, WeightsArePowersOfTwoOfTheDistance) {
  uint64_t before = ~uint64_t{0};
  for (uint64_t d = 0; d <= sampling::kNever; d += 9973) {
    const uint64_t weight = sampling::weight(static_cast<uint32_t>(d));
    const double exact = std::exp2(40 - std::ldexp(static_cast<double>(d), -sampling::kOctaveBits));
    EXPECT_NEAR(static_cast<double>(weight), exact, 1 + 6e-9 * exact);
    EXPECT_LE(weight, before);
    before = weight;
  }
  EXPECT_EQ(sampling::weight(sampling::kNever), 0U);
  EXPECT_EQ(sampling::distance(2, -INFINITY, 1), sampling::kNever);
  EXPECT_EQ(sampling::distance(2, 1, 1), 1U << sampling::kOctaveBits);
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  EXPECT_EQ(sample({}, std::vector<float>{0, 3, 3, -1}, 0), 1);
  EXPECT_EQ(sample({}, std::vector<float>{NAN, -5, -4}, 0), 2);
  EXPECT_EQ(sample({}, std::vector<float>{-0.0F, 0.0F}, 0), 0);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  SamplingOptions options;
  options.temperature = 1;
  const auto seen = draws(options, logits, 20000);
  EXPECT_NEAR(seen.at(0) / 20000.0, 0.5, 0.015);
  EXPECT_NEAR(seen.at(2) / 20000.0, 0.2, 0.015);
  options.temperature = 0.5;  // squares the probabilities
  EXPECT_NEAR(draws(options, logits, 20000).at(0) / 20000.0, 0.25 / 0.38, 0.015);
  options.temperature = 1e-300;  // the limit: greedy
  EXPECT_EQ(draws(options, logits, 100).at(0), 100);
  options.temperature = 1e300;  // the limit: all alike
  EXPECT_NEAR(draws(options, logits, 20000).at(1) / 20000.0, 1 / 3.0, 0.015);
}

TEST(Sampler, CutsKeepWhatTheyShould) {
  const std::vector<float> logits = {std::log(0.1F), std::log(0.3F), std::log(0.2F), std::log(0.4F)};
  const auto kept = [&](const SamplingOptions& options) {
    std::vector<int64_t> ids;
    for (const auto& [id, count] : draws(options, logits)) ids.push_back(id);
    return ids;
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2}), (Ids{1, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.65}), (Ids{1, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 1e-9}), (Ids{3}));
  EXPECT_EQ(kept({.temperature = 1, .min_p = 0.45}), (Ids{1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 100}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 3, .top_p = 0.7}), (Ids{1, 3}));  // 0.7 of 0.9
  EXPECT_EQ(kept({.temperature = 1, .min_p = 1}), (Ids{3}));
  EXPECT_EQ(kept({.temperature = 1e300, .top_k = 2}), (Ids{1, 3}));  // equally likely, but not equally large
}

TEST(Sampler, TiesGoToTheSmallerId) {
  const std::vector<float> logits(50, 0.5F);
  for (const auto& [id, count] : draws({.temperature = 1, .top_k = 7}, logits)) EXPECT_LT(id, 7);
  for (const auto& [id, count] : draws({.temperature = 1, .top_p = 0.2}, logits)) EXPECT_LT(id, 11);
}

TEST(Sampler, RepetitionIsPenalised) {
  SamplingOptions options;
  options.repetition_penalty = 2;
  EXPECT_EQ(sample(options, std::vector<float>{3, 2, -1}, 0, std::vector<uint8_t>{1, 0, 0}), 1);
  EXPECT_EQ(sample(options, std::vector<float>{-1.5F, -1, -9}, 0, std::vector<uint8_t>{0, 1, 0}), 0);
}

TEST(Sampler, ADrawDependsOnSeedAndPositionAlone) {
  const std::vector<float> logits(50, 0.0F);
  const SamplingOptions options{.temperature = 1, .seed = 7}, other{.temperature = 1, .seed = 8};
  int equal = 0;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sample(options, logits, i), sample(options, logits, i));
    equal += sample(options, logits, i) == sample(other, logits, i) ? 1 : 0;
  }
  EXPECT_LT(equal, 20);
  EXPECT_GT(draws(options, logits, 500).size(), 40U);
}

TEST(Sampler, BadInputIsRefused) {
  for (const SamplingOptions& bad : std::vector<SamplingOptions>{{.temperature = -1},
                                                                 {.temperature = NAN},
                                                                 {.top_k = -1},
                                                                 {.top_p = 0},
                                                                 {.top_p = 1.5},
                                                                 {.min_p = -0.1},
                                                                 {.min_p = 2},
                                                                 {.repetition_penalty = 0},
                                                                 {.repetition_penalty = INFINITY}}) {
    EXPECT_THROW(sample(bad, std::vector<float>{1, 2}, 0), std::invalid_argument);
    EXPECT_THROW(make_sampler(bad, 1, 2, at::kCPU), std::invalid_argument);
  }
  EXPECT_EQ(sample({}, std::vector<float>{NAN, NAN}, 0), -1);
  EXPECT_EQ(sample({}, std::vector<float>{INFINITY, 1}, 0), -1);
  EXPECT_EQ(sample({}, {}, 0), -1);
}

// A row of a batch draws what its sequence draws alone, with the tokens drawn so far penalised.
TEST(BatchSampler, ARowIsItsSequence) {
  at::manual_seed(3);
  const SamplingOptions options{.temperature = 0.8, .top_k = 20, .repetition_penalty = 1.3, .seed = 5};
  const std::vector<std::vector<int64_t>> histories = {{1, 2}, {3}, {4, 5, 6, 7}};
  const auto together = make_sampler(options, 3, 64, at::kCPU);
  std::vector<std::vector<uint8_t>> seen(3, std::vector<uint8_t>(64));
  for (size_t r = 0; r < 3; ++r) {
    together->begin(static_cast<int64_t>(r), histories[r]);
    EXPECT_EQ(together->ids()[static_cast<int64_t>(r)].item<int64_t>(), histories[r].back());
    for (const int64_t id : histories[r]) seen[r][static_cast<size_t>(id)] = 1;
  }
  for (size_t t = 0; t < 20; ++t) {
    const at::Tensor logits = at::randn({3, 64}) * 2;
    together->draw(logits);
    const std::vector<int64_t> ids = together->read();
    for (size_t r = 0; r < 3; ++r) {
      const std::span<const float> row(logits.const_data_ptr<float>() + r * 64, 64);
      EXPECT_EQ(ids[r], sample(options, row, static_cast<int64_t>(histories[r].size() + t), seen[r]));
      seen[r][static_cast<size_t>(ids[r])] = 1;
      EXPECT_EQ(together->ids()[static_cast<int64_t>(r)].item<int64_t>(), ids[r]);
    }
  }
}

TEST(BatchSampler, LogitsThatAreNotFiniteAreReported) {
  const auto sampler = make_sampler({}, 2, 3, at::kCPU);
  sampler->draw(at::tensor(std::vector<float>{NAN, 1, 0.5F, INFINITY, 1, 2}).view({2, 3}));
  EXPECT_EQ(sampler->read(), (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(sampler->ids()[1].item<int64_t>(), 0);  // a step can take it
}

}  // namespace
}  // namespace cyfa::test
