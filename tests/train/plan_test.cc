// Tests the analytic model of `cyfa plan`: units and limits, against what has been measured and what must hold.
#include "cyfa/train/plan.h"

#include <gtest/gtest.h>

namespace cyfa::test {
namespace {

ModelCosts costs_of(const std::string& name) {
  return ModelCosts::of(CausalLM(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/" + name + ".json")));
}

const Layout* find(const std::vector<Layout>& layouts, const std::string& way, int64_t ranks) {
  for (const Layout& l : layouts) {
    if (l.way == way && l.context_ranks == ranks) return &l;
  }
  return nullptr;
}

TEST(Plan, OneGpuIsWhatWasMeasured) {
  const ModelCosts model = costs_of("cyfa-400m");
  PlanRequest r;
  r.gpus = 1;
  r.step_tokens = 65536;
  const std::vector<Layout> layouts = plan(model, machine_of("h200"), r);
  ASSERT_EQ(layouts.size(), 1U);
  EXPECT_NEAR(layouts[0].tokens_per_s, 205702, 0.03 * 205702);  // bench/results/2026-11-17-H200.json
  EXPECT_DOUBLE_EQ(layouts[0].parameters + layouts[0].gradients + layouts[0].optimizer, 18 * model.parameters);
  EXPECT_NEAR(model.activations, 1.3e6, 0.1e6);
  EXPECT_NEAR(layouts[0].gpu_hours, r.tokens / layouts[0].tokens_per_s / 3600, 1e-6);
}

TEST(Plan, MoreGpusAreFasterAndNeverMoreThanThat) {
  const ModelCosts model = costs_of("cyfa-1.4b");
  double before = 0;
  for (const int64_t gpus : {8, 64, 512}) {
    PlanRequest r;
    r.gpus = gpus;
    r.step_tokens = 4e6;
    const std::vector<Layout> layouts = plan(model, machine_of("h100"), r);
    const double ideal = r.share * 989e12 * static_cast<double>(gpus) / (3 * model.flops_per_token);
    EXPECT_GT(layouts[0].tokens_per_s, before);
    EXPECT_LE(layouts[0].tokens_per_s, ideal * (1 + 1e-9));
    before = layouts[0].tokens_per_s;
    const Layout *dp = find(layouts, "DP", 1), *zero = find(layouts, "ZeRO-1", 1);
    EXPECT_LT(zero->optimizer, dp->optimizer);
    for (const Layout& l : layouts) {
      if (!l.refusal.empty()) continue;
      EXPECT_LE(l.memory(), machine_of("h100").memory) << l.way << " " << l.context_ranks;
    }
  }
}

TEST(Plan, CutsSequencesThatOneGpuCannotHold) {
  PlanRequest r;
  r.gpus = 64;
  r.context = 16 << 20;
  r.step_tokens = 4.0 * static_cast<double>(r.context);
  const std::vector<Layout> layouts = plan(costs_of("cyfa-400m"), machine_of("h100"), r);
  EXPECT_TRUE(layouts[0].refusal.empty());
  EXPECT_GE(layouts[0].context_ranks, 16);  // a step has four sequences, and no GPU may idle
  EXPECT_FALSE(find(layouts, "DP", 1)->refusal.empty());
  for (const Layout& l : plan(costs_of("transformer-400m"), machine_of("h100"), r)) EXPECT_FALSE(l.refusal.empty());
}

TEST(Plan, RefusesBadRequests) {
  const ModelCosts model = costs_of("cyfa-9m");
  const auto refuses = [&](const PlanRequest& r) { EXPECT_THROW(plan(model, machine_of("h100"), r), std::invalid_argument); };
  PlanRequest r;
  for (const int64_t gpus : {0, 12}) {
    r.gpus = gpus;
    refuses(r);
  }
  r = {};
  r.context = 1 << 30;
  refuses(r);
  r = {};
  r.share = 1.5;
  refuses(r);
  EXPECT_THROW(machine_of("abacus"), std::invalid_argument);
}

}  // namespace
}  // namespace cyfa::test
