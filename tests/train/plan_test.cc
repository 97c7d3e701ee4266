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

// Training steps of cyfa on one H200, bf16, without recomputation unless `again`; 0 GiB where memory was not measured.
struct Measured {
  const char* model;
  double sequences, parts, tokens_per_s, gib;
  double context = 2048;
  bool again = false;
};
constexpr Measured kMeasured[] = {
    {"cyfa-400m", 32, 4, 205702, 0},                  // bench/results/2026-11-17-H200.json
    {"cyfa-400m", 32, 4, 201624, 0},                  // 2026-11-18-H200.json
    {"cyfa-400m", 32, 4, 203212, 25.6},               // 2026-11-18-H200-speed.json
    {"cyfa-400m", 32, 1, 209313, 80.2},               // the same
    {"cyfa-400m", 32, 4, 204682, 25.5},               // 2026-11-19-H200.json
    {"cyfa-400m", 32, 1, 219568, 80.0},               // the same
    {"cyfa-400m", 1, 1, 162533, 61.2, 524288, true},  // the same
    {"cyfa-800m", 8, 1, 97976, 40.9},                 // the same
    {"cyfa-1.4b", 8, 1, 64525, 60.1},                 // the same
};

TEST(Plan, IsWithinTenPercentOfMeasuredMemoryAndFifteenOfTime) {
  for (const Measured& m : kMeasured) {
    SCOPED_TRACE(std::string(m.model) + ", " + std::to_string(m.parts) + " parts");
    const ModelCosts model = costs_of(m.model);
    const double tokens = m.sequences * m.context;
    const double seconds = computing_seconds(model, machine_of("h200"), tokens, m.parts, m.again, model.parameters);
    EXPECT_NEAR(tokens / seconds, m.tokens_per_s, 0.15 * m.tokens_per_s);
    if (m.gib == 0) continue;
    EXPECT_NEAR(training_bytes(model, tokens / m.parts, m.again) / (1 << 30), m.gib, 0.1 * m.gib);
  }
}

TEST(Plan, OneGpuComputesAndKeepsWhatItsPartsSay) {
  const ModelCosts model = costs_of("cyfa-400m");
  PlanRequest r;
  r.gpus = 1;
  r.step_tokens = 65536;
  const std::vector<Layout> layouts = plan(model, machine_of("h200"), r);
  ASSERT_EQ(layouts.size(), 1U);
  EXPECT_EQ(layouts[0].parts, 1);
  EXPECT_DOUBLE_EQ(layouts[0].step(), computing_seconds(model, machine_of("h200"), 65536, 1, false, model.parameters));
  EXPECT_DOUBLE_EQ(layouts[0].memory(), training_bytes(model, 65536, false));
  EXPECT_DOUBLE_EQ(layouts[0].parameters + layouts[0].gradients + layouts[0].optimizer, 18 * model.parameters);
  EXPECT_NEAR(layouts[0].gpu_hours, r.tokens / layouts[0].tokens_per_s / 3600, 1e-6);
  // A measured GPU that is slower, or a share of the peak in place of the rates.
  r.correction = 1.25;
  EXPECT_DOUBLE_EQ(plan(model, machine_of("h200"), r)[0].step(), 1.25 * layouts[0].step());
  r.correction = 1;
  r.share = 0.5;
  EXPECT_DOUBLE_EQ(plan(model, machine_of("h200"), r)[0].step(), 3 * model.flops_per_token * 65536 / (0.5 * 989e12));
}

TEST(Plan, MoreGpusAreFasterAndNeverMoreThanThat) {
  const ModelCosts model = costs_of("cyfa-1.4b");
  double before = 0;
  for (const int64_t gpus : {8, 64, 512}) {
    PlanRequest r;
    r.gpus = gpus;
    r.step_tokens = 1 << 22;
    const std::vector<Layout> layouts = plan(model, machine_of("h100"), r);
    const double ideal = static_cast<double>(gpus) / computing_seconds(model, machine_of("h100"), 1, 0, false, 0);
    EXPECT_GT(layouts[0].tokens_per_s, before);
    EXPECT_LE(layouts[0].tokens_per_s, ideal * (1 + 1e-9));
    before = layouts[0].tokens_per_s;
    const Layout *dp = find(layouts, "DP", 1), *zero = find(layouts, "ZeRO-1", 1);
    // 22 bytes a parameter, of which ZeRO-1 divides the optimizer's; the parameters travel back in bf16.
    EXPECT_DOUBLE_EQ(dp->parameters + dp->gradients + dp->optimizer, 22 * model.parameters);
    EXPECT_DOUBLE_EQ(zero->parameters + zero->gradients + zero->optimizer, (10 + 16 / static_cast<double>(gpus)) * model.parameters);
    EXPECT_LT(zero->exchanging, dp->exchanging);
    for (const Layout& l : layouts) {
      if (!l.refusal.empty()) continue;
      EXPECT_LE(l.memory(), machine_of("h100").memory) << l.way << " " << l.context_ranks;
      if (static_cast<int64_t>(r.step_tokens) % (gpus / l.context_ranks * r.context) != 0) continue;
      EXPECT_EQ(l.parts * l.sequences * gpus / l.context_ranks * r.context, static_cast<int64_t>(r.step_tokens));
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
