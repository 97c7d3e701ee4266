// Tests the noise of Raven's router in training.
#include <gtest/gtest.h>

#include "cyfa/mixers/parts.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

Json raven(bool noise) {
  return {{"model_type", "raven"},    {"hidden_size", 48}, {"num_hidden_layers", 2}, {"vocab_size", 61},
          {"intermediate_size", 80},  {"num_heads", 3},    {"num_slots", 10},        {"topk", 4},
          {"add_gumbel_noise", noise}};
}

TEST(Noise, IsGumbelAndRepeats) {
  const at::Tensor like = at::empty({200000}), x = gumbel_noise(like, 7).to(at::kDouble);
  EXPECT_NEAR(x.mean().item<double>(), 0.5772, 0.02);  // Euler's constant
  EXPECT_NEAR(x.var().item<double>(), 1.6449, 0.05);   // pi^2 / 6
  EXPECT_TRUE(at::equal(gumbel_noise(like, 7), gumbel_noise(like, 7)));
  EXPECT_FALSE(at::equal(gumbel_noise(like, 7), gumbel_noise(like, 8)));
}

TEST(Noise, IsDrawnFromTheSeedOfTheWeightsAlone) {
  const CausalLM m = small_model(raven(true));
  const at::NoGradGuard no_grad;
  const Weights w = m.weights();
  const at::Tensor ids = random_ids(m, {2, 30});
  const auto hidden = [&](const Weights& by) { return m.forward(by, ids).hidden; };
  EXPECT_FALSE(w.noise().has_value());
  EXPECT_FALSE(at::equal(hidden(w), hidden(w.with_noise(1))));
  EXPECT_FALSE(at::equal(hidden(w.with_noise(2)), hidden(w.with_noise(1))));
  EXPECT_TRUE(at::equal(hidden(w.with_noise(1)), hidden(w.with_noise(1))));
  const auto seed = [&](size_t layer) { return m.layers()[layer].weights(w.with_noise(1)).noise(); };
  EXPECT_NE(seed(0), seed(1));  // layers draw different numbers
  const CausalLM quiet = small_model(raven(false));
  const Weights v = quiet.weights();
  EXPECT_TRUE(at::equal(quiet.forward(v, ids).hidden, quiet.forward(v.with_noise(1), ids).hidden));
  EXPECT_TRUE(at::equal(hidden(w), quiet.forward(v, ids).hidden));  // without a seed the option has no effect
}

TEST(Noise, RecomputedLayersDrawTheSame) {
  CausalLM m = small_model(raven(true));
  const at::Tensor ids = random_ids(m, {2, 31});
  std::vector<std::vector<at::Tensor>> grads(2);
  for (const bool recompute : {false, true}) {
    for (at::Tensor& p : m.parameters()) {
      p.requires_grad_();
      p.mutable_grad().reset();
    }
    m.loss(m.weights().with_noise(5), ids.narrow(1, 0, 30), ids.narrow(1, 1, 30), std::nullopt, recompute).backward();
    for (const at::Tensor& p : m.parameters()) grads[recompute ? 1 : 0].push_back(p.grad().clone());
  }
  for (size_t i = 0; i < grads[0].size(); ++i) {  // a forward without gradients rounds differently
    EXPECT_LT(((grads[0][i] - grads[1][i]).norm() / grads[0][i].norm()).item<double>(), 1e-4) << m.table().specs()[i].name;
  }
}

}  // namespace
}  // namespace cyfa::test
