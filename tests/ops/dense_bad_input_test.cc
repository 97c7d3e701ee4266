// Bad input of the dense functions: attention's cache, the convolution's state, the targets of the cross entropy.
#include <gtest/gtest.h>

#include <functional>

#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/attention.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/ops/dense/short_conv.h"

namespace cyfa::ops {
namespace {

using at::Tensor;

void expect_refused(const std::function<void()>& call, const std::string& word) {
  try {
    call();
    ADD_FAILURE() << "taken: " << word;
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(DenseBadInput, AttentionStepChecksItsWholeCache) {
  const Tensor q = at::randn({2, 4, 8}), k = at::randn({2, 2, 8}), v = at::randn({2, 2, 8});
  const auto cache = [] { return AttentionCache{at::zeros({2, 64, 2, 8}), at::zeros({2, 64, 2, 8}), at::zeros({2}, at::kLong)}; };
  AttentionCache good = cache();
  EXPECT_NO_THROW(attention_step(q, k, v, good, 0));
  for (const Tensor& other : {Tensor(), at::zeros({2, 63, 2, 8}), at::zeros({1, 64, 2, 8}), at::zeros({2, 64, 2, 8}, at::kBFloat16)}) {
    AttentionCache wrong = cache();
    wrong.v = other;
    expect_refused([&] { attention_step(q, k, v, wrong, 0); }, "cache.v");
    EXPECT_EQ(wrong.tokens.sum().item<int64_t>(), 0);
  }
  AttentionCache counters = cache();
  counters.tokens = at::zeros({2});
  expect_refused([&] { attention_step(q, k, v, counters, 0); }, "cache.tokens");
  AttentionCache window = cache();
  expect_refused([&] { attention_step(q, k, v, window, -1); }, "window");
  AttentionInputs in{at::randn({2, 3, 4, 8}), at::randn({2, 3, 2, 8}), at::randn({2, 3, 2, 8}), cache(), {}, 0};
  in.initial->v = at::zeros({2, 64, 2, 8}, at::kBFloat16);
  expect_refused([&] { attention(in); }, "initial.v");
}

TEST(DenseBadInput, TheConvolutionStepChecksItsArguments) {
  Tensor state = at::zeros({2, 3, 8});
  const Tensor x = at::randn({2, 8}), weight = at::randn({8, 1, 4});
  expect_refused([&] { short_conv_step(x, weight, at::randn({7}), state); }, "bias");
  expect_refused([&] { short_conv_step(x, at::randn({8, 1, 0}), std::nullopt, state); }, "weight");
  expect_refused([&] { short_conv_step(x.to(at::kLong), weight, std::nullopt, state); }, "x has type");
}

// Only -100 is ignored. torch's own cross entropy refuses the others too.
TEST(DenseBadInput, TargetsAreIdsOrIgnored) {
  const Tensor x = at::randn({6, 8}), weight = at::randn({5, 8});
  for (const int64_t target : {-1, -99, -101, 5, 1 << 20}) {
    const Tensor targets = at::tensor({0, 1, -100, 4, 2, 3}, at::kLong).index_fill(0, at::tensor({4}, at::kLong), target);
    expect_refused([&] { linear_cross_entropy(x, weight, targets); }, "targets hold " + std::to_string(target));
  }
  const Tensor targets = at::tensor({0, 1, -100, 4, -100, 3}, at::kLong);
  EXPECT_NEAR(linear_cross_entropy(x, weight, targets).item<double>(),
              at::cross_entropy_loss(at::linear(x, weight), targets).item<double>(), 1e-5);
}

}  // namespace
}  // namespace cyfa::ops
