// Analyses of the clock on cases whose answers are known by hand, and on small models.
#include <gtest/gtest.h>

#include <cmath>

#include "cyfa/analysis/increments.h"
#include "cyfa/analysis/interventions.h"
#include "cyfa/analysis/reads.h"
#include "tests/model/small_model.h"

namespace cyfa::analysis {
namespace {

CausalLM small_model(const Json& keys = Json::object()) {
  Json config = test::small_config();
  config.update(keys);
  CausalLM model(ModelConfig::parse(config));
  model.initialise(3);
  return model;
}

at::Tensor random_ids(int64_t sequences, int64_t tokens) {
  at::manual_seed(5);
  return at::randint(61, {sequences, tokens}, at::kLong);
}

at::Tensor& parameter(CausalLM& model, const std::string& ending) {
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    if (model.table().specs()[i].name.ends_with(ending)) return model.parameters()[i];
  }
  throw std::logic_error("no parameter " + ending);
}

Increments by_hand(const std::vector<std::vector<double>>& delta, const std::vector<int64_t>& ids) {
  Increments out;
  const auto T = static_cast<int64_t>(ids.size());
  out.ids = at::tensor(ids, at::kLong).view({1, T});
  out.delta = at::empty({static_cast<int64_t>(delta.size()), 1, T}, at::kFloat);
  for (size_t h = 0; h < delta.size(); ++h) {
    out.heads.push_back({h, 0});
    out.delta[static_cast<int64_t>(h)][0].copy_(at::tensor(delta[h], at::kDouble));
  }
  return out;
}

TEST(Clock, TheHookSeesTheIncrementsAndChangesNothing) {
  const CausalLM model = small_model();
  const Weights w = model.weights();
  const at::Tensor ids = random_ids(2, 19);
  std::vector<size_t> layers;
  const at::Tensor hidden = forward_with_clock(model, w, ids, [&](const ClockLayer& layer, const at::Tensor& delta) {
    layers.push_back(layer.layer);
    EXPECT_EQ(delta.sizes(), at::IntArrayRef({2, 19, 3}));
    return delta;
  });
  EXPECT_EQ(layers, (std::vector<size_t>{0, 1}));
  const LmOutput plain = model.forward(w, ids);
  EXPECT_TRUE(at::equal(hidden, plain.hidden));
  // The clock of the state is the sum of the increments.
  const Increments increments = measure_increments(model, w, ids);
  const at::Tensor sums = increments.delta.to(at::kDouble).sum(-1);  // [heads, N]
  for (const ClockLayer& layer : clock_layers(model)) {
    const at::Tensor clock = model.view(plain.final_state, layer.layer)->clock;
    EXPECT_TRUE(at::allclose(sums.narrow(0, layer.first, layer.heads).t(), clock, 1e-6, 1e-5));
  }
}

TEST(Clock, ModelsWithoutOneAreRefusedAndHybridsGiveTheirClocks) {
  for (const test::ModelCase& one : test::model_cases()) {
    const CausalLM model(ModelConfig::parse(one.config));
    if (one.name.starts_with("CyclicFlow") || one.name.starts_with("Hybrid")) {
      EXPECT_EQ(clock_heads(model).size(), one.name.starts_with("CyclicFlow") ? 6u : 3u) << one.name;
      EXPECT_EQ(clock_layers(model)[0].layer, 0u);
    } else {
      EXPECT_THROW(clock_layers(model), std::invalid_argument) << one.name;
    }
  }
}

TEST(Increments, StatisticsAndClasses) {
  std::vector<double> ramp, near, narrow;
  std::vector<int64_t> ids;
  for (int i = 0; i <= 100; ++i) {
    ramp.push_back(i / 100.0);
    near.push_back(0.96 + i / 2500.0);
    narrow.push_back(0.5 + i / 2000.0);
    ids.push_back(i);
  }
  const Increments increments = by_hand({ramp, near, narrow}, ids);
  const std::vector<HeadIncrements> heads = increments_by_head(increments);
  EXPECT_NEAR(heads[0].mean, 0.5, 1e-6);
  EXPECT_NEAR(heads[0].deviation, std::sqrt(0.085), 1e-6);  // (n^2 - 1) / 12 of n = 101 steps of 1 / 100
  EXPECT_NEAR(heads[0].p05, 0.05, 1e-6);
  EXPECT_NEAR(heads[0].p95, 0.95, 1e-6);
  EXPECT_EQ(heads[0].kind, HeadClass::kInputDependent);
  EXPECT_EQ(heads[1].kind, HeadClass::kNearOne);
  EXPECT_EQ(heads[2].kind, HeadClass::kOther);
  const std::vector<ClassIncrements> classes = increments_by_class(increments, heads);
  for (const ClassIncrements& one : classes) EXPECT_EQ(one.heads, 1);
  EXPECT_NEAR(classes[0].mean, 0.98, 1e-6);
  const at::Tensor histogram = increment_histogram(increments, 4);
  EXPECT_TRUE(at::allclose(histogram.sum(1), at::ones({3}, at::kDouble)));
  EXPECT_NEAR(histogram[0][3].item<double>(), 26.0 / 101, 1e-9);              // 0.75 .. 1, the last included
  EXPECT_EQ(context_heads(heads), (std::vector<bool>{false, false, false}));  // the only input-dependent head is in the first layer
}

TEST(Increments, VarianceBetweenAndWithinTokens) {
  // Head 0: the token decides. Head 1: it says nothing. Head 2: half and half. Head 3: constant.
  const Increments increments = by_hand({{0, 0, 1, 1}, {0, 1, 0, 1}, {0.0, 0.2, 0.2, 0.4}, {0.5, 0.5, 0.5, 0.5}}, {7, 7, 9, 9});
  const std::vector<TokenSplit> splits = split_by_token(increments);
  EXPECT_NEAR(splits[0].identity, 1, 1e-6);
  EXPECT_NEAR(splits[0].between, 0.25, 1e-6);
  EXPECT_NEAR(splits[1].identity, 0, 1e-6);
  EXPECT_NEAR(splits[1].within, 0.25, 1e-6);
  EXPECT_NEAR(splits[2].identity, 0.5, 1e-6);
  EXPECT_NEAR(splits[2].adjusted, 1 - (0.01 / 2) / (0.02 / 3), 1e-5);
  EXPECT_TRUE(std::isnan(splits[3].identity));
  const TokenSplit both = total_split(splits, {true, true, false, false}, increments);
  EXPECT_NEAR(both.identity, 0.5, 1e-6);
  EXPECT_TRUE(std::isnan(total_split(splits, {false, false, false, false}, increments).identity));
}

TEST(Increments, TheFirstLayerWithoutContextIsAllIdentity) {
  // The first clock sees only the embedding of its token; the second layer's sees more.
  const CausalLM model = small_model();
  const std::vector<TokenSplit> splits = split_by_token(measure_increments(model, model.weights(), random_ids(3, 50)));
  EXPECT_GT(splits[0].identity, 1 - 1e-9);
  EXPECT_LT(splits[3].identity, 0.999);
}

TEST(Increments, CasesShowTheSameTokenInItsContexts) {
  // Byte tokenizer: 'b' follows 'a' or 'c', and head 1 gives it 0.9 and 0.1.
  const ByteTokenizer bytes;
  std::vector<int64_t> ids;
  std::vector<double> flat, depends;
  for (int i = 0; i < 10; ++i) {
    for (const char c : std::string(i % 2 == 0 ? "ab " : "cb ")) {
      ids.push_back(c);
      flat.push_back(0.5);
      depends.push_back(c != 'b' ? 0.5 : i % 2 == 0 ? 0.9 : 0.1);
    }
  }
  const std::vector<TokenCase> cases = token_cases(by_hand({flat, depends}, ids), {true, true}, bytes, 5);
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].word, "b");
  EXPECT_EQ(cases[0].head.name(), "L1H0");
  EXPECT_EQ(cases[0].count, 10);
  EXPECT_NEAR(cases[0].low.delta, 0.1, 1e-6);
  EXPECT_NEAR(cases[0].high.delta, 0.9, 1e-6);
  EXPECT_TRUE(cases[0].low.before.ends_with("c")) << cases[0].low.before;
  EXPECT_TRUE(cases[0].high.before.ends_with("a")) << cases[0].high.before;
  EXPECT_TRUE(cases[0].high.after.starts_with(" ")) << cases[0].high.after;
}

TEST(Interventions, TheOriginalIsTheModelsLossAndEqualIncrementsChangeNothing) {
  // A constant clock's mean is its increment, and shifting it in time moves nothing; only delta = 1 changes the loss.
  CausalLM model = small_model({{"clock", "constant"}});
  const Weights w = model.weights();
  const at::Tensor ids = random_ids(3, 23);
  const std::vector<InterventionLoss> all = intervene(model, w, ids, {std::vector<bool>(6, true), std::vector<double>(6, 0.5), 5});
  ASSERT_EQ(all.size(), 4u);
  EXPECT_NEAR(all[0].mean, model.next_token_loss(w, ids).item<double>(), 1e-6);
  for (const size_t same : {0u, 1u, 2u}) {
    EXPECT_EQ(all[same].losses, all[0].losses) << all[same].name;
    EXPECT_EQ(all[same].worse, 0);
  }
  EXPECT_NE(all[3].losses, all[0].losses);
  EXPECT_NEAR(all[3].change, all[3].mean - all[0].mean, 1e-12);
  // By the definition of the standard error.
  double squares = 0;
  for (size_t i = 0; i < 3; ++i) squares += std::pow(all[3].losses[i] - all[0].losses[i] - all[3].change, 2);
  EXPECT_NEAR(all[3].error, std::sqrt(squares / 2 / 3), 1e-12);
}

TEST(Interventions, OnlyTheChosenHeadsChange) {
  CausalLM model = small_model();
  const Weights w = model.weights();
  const at::Tensor ids = random_ids(1, 30);
  for (const InterventionLoss& one : intervene(model, w, ids, {std::vector<bool>(6, false), std::vector<double>(6, 0.1), 7})) {
    EXPECT_EQ(one.change, 0) << one.name;
    EXPECT_TRUE(std::isnan(one.error));  // one sequence has no standard error
  }
  // Replacing a head's increments by 1 is what a bias that saturates the sigmoid does.
  const double one = intervene(model, w, ids, {{false, true, false, false, false, false}, std::vector<double>(6, 0.5), 7})[3].mean;
  parameter(model, "layers.0.attn.d_proj.bias")[1].fill_(1e4);
  EXPECT_NEAR(one, model.next_token_loss(model.weights(), ids).item<double>(), 1e-6);
  EXPECT_THROW(intervene(model, w, ids, {std::vector<bool>(6, true), std::vector<double>(6, 0.5), 58}), std::invalid_argument);
}

TEST(Reads, AgesOfAHeadThatForgetsAtOnce) {
  // With alpha = 0 only the newest write is left: all weight lies at distance 0.
  CausalLM model = small_model();
  parameter(model, "layers.0.attn.dt_bias").fill_(1e4);
  parameter(model, "layers.0.attn.A_log").fill_(5);
  const std::vector<ReadAges> ages = read_ages(model, model.weights(), random_ids(2, 21));
  ASSERT_EQ(ages.size(), 6u);
  for (size_t h = 0; h < 6; ++h) {
    double sum = 0;
    for (const double share : ages[h].by_distance) sum += share;
    EXPECT_NEAR(sum, 1, 1e-9);
    if (h < 3) {
      EXPECT_NEAR(ages[h].by_distance[0], 1, 1e-9);
      EXPECT_EQ(ages[h].tokens_p90, 0);
      EXPECT_NEAR(ages[h].clock_mean, 0, 1e-9);
    } else {
      EXPECT_GT(ages[h].tokens_mean, 0.5);
      EXPECT_GT(ages[h].clock_mean, 0);
    }
  }
}

TEST(Reads, AClockThatStandsKeepsOneSlotAndAWholeStepFillsThemAll) {
  CausalLM model = small_model({{"use_forget_gate", false}});  // 9 active slots
  const at::Tensor ids = random_ids(2, 18);
  parameter(model, "layers.0.attn.d_proj.weight").zero_();
  parameter(model, "layers.0.attn.d_proj.bias").fill_(-1e4);
  std::vector<SlotUse> use = slot_use(model, model.weights(), ids, 2);
  EXPECT_NEAR(use[0].slots[1], 1, 1e-6);
  EXPECT_NEAR(use[0].by_slot[0], 1, 1e-6);
  EXPECT_EQ(use[0].by_slot.size(), 9u);
  parameter(model, "layers.0.attn.d_proj.bias").fill_(1e4);
  use = slot_use(model, model.weights(), ids, 2);
  EXPECT_GT(use[0].slots[0], 4);
  EXPECT_GT(read_ages(model, model.weights(), ids)[0].wrapped, 0.05);  // 18 clock units in 9 slots
  EXPECT_THROW(slot_use(model, model.weights(), ids, 5), std::invalid_argument);
}

}  // namespace
}  // namespace cyfa::analysis
