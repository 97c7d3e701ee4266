// The recall task with a gap, the two models of the demo, and what the picture says about a head's reads; smoothing of losses.
#include "cyfa/train/recall.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/train/loss_figure.h"

namespace cyfa {
namespace {

RecallTask task_with_gap() {
  RecallTask task;
  task.pairs = 3;
  task.gap = 2 + RecallModels::kReach;
  task.batch = 4;
  return task;
}

CausalLM initialised(const ModelConfig& config) {
  CausalLM model(config);
  model.initialise(7);
  return model;
}

TEST(Recall, FillerSeparatesPairsAndQuestions) {
  const RecallTask task = task_with_gap();
  const TrainBatch batch = task.at(0);
  EXPECT_EQ(batch.inputs.size(1), task.context());
  EXPECT_EQ(batch.inputs.eq(task.filler()).sum().item<int64_t>(), task.batch * task.gap);
  EXPECT_TRUE(batch.inputs.slice(1, 2 * task.pairs, task.first_query()).eq(task.filler()).all().item<bool>());
  EXPECT_EQ(batch.targets.ne(ops::kIgnore).sum().item<int64_t>(), task.batch * task.pairs);
  std::map<int64_t, int64_t> shown;
  for (int64_t i = 0; i < task.pairs; ++i) shown[batch.inputs[0][2 * i].item<int64_t>()] = batch.inputs[0][2 * i + 1].item<int64_t>();
  for (int64_t t = task.first_query(); t < task.context(); t += 2) {
    EXPECT_EQ(batch.targets[0][t].item<int64_t>(), shown.at(batch.inputs[0][t].item<int64_t>()));
  }
}

TEST(Recall, TokensHaveNames) {
  RecallTask task;
  task.keys = 60;
  EXPECT_EQ(task.name(0), "A");
  EXPECT_EQ(task.name(25), "Z");
  EXPECT_EQ(task.name(26), "AA");
  EXPECT_EQ(task.name(53), "BB");
  EXPECT_EQ(task.name(60), "0");
  EXPECT_EQ(task.name(task.filler()), "·");
}

TEST(Recall, BothModelsHaveTheSameState) {
  const RecallTask task = task_with_gap();
  const CausalLM flow(RecallModels::cyclic_flow(task)), window(RecallModels::window(task));
  for (size_t layer = 0; layer < static_cast<size_t>(RecallModels::kLayers); ++layer) {
    EXPECT_EQ(flow.memory_scalars(layer), window.memory_scalars(layer));
  }
  EXPECT_NEAR(static_cast<double>(flow.table().numel()) / static_cast<double>(window.table().numel()), 1, 0.2);
}

// The demo's claim: beyond the reach of its layers, no value that was shown changes anything that the window model says, bit for bit; what
// a CyFA says depends on every pair.
TEST(Recall, OnlyTheWindowCannotSeeThePairs) {
  const RecallTask task = task_with_gap();
  const at::Tensor ids = task.at(0).inputs;
  at::Tensor other = ids.clone();
  other.slice(1, 0, 2 * task.pairs).fill_(0);
  const auto said = [&](const CausalLM& model, const at::Tensor& inputs) {
    const at::NoGradGuard no_grad;
    const Weights w = model.weights();
    return model.head(w, model.forward(w, inputs).hidden).slice(1, task.first_query());
  };
  const CausalLM window = initialised(RecallModels::window(task)), flow = initialised(RecallModels::cyclic_flow(task));
  EXPECT_TRUE(at::equal(said(window, ids), said(window, other)));
  EXPECT_FALSE(at::equal(said(flow, ids), said(flow, other)));
  // One token nearer than the reach, the window does see it.
  at::Tensor near = ids.clone();
  near.select(1, task.first_query() - RecallModels::kReach).fill_(0);
  EXPECT_FALSE(at::equal(said(window, ids), said(window, near)));
}

TEST(Recall, ReadsAreThoseOfOneHead) {
  const RecallTask task = task_with_gap();
  const CausalLM model = initialised(RecallModels::cyclic_flow(task));
  const at::Tensor ids = task.at(0).inputs[0];
  const RecallReads reads = recall_reads(model, task, ids);
  const int64_t m = RecallModels::kSlots - 1;
  EXPECT_EQ(reads.slots.sizes(), (at::IntArrayRef{m, task.context()}));
  EXPECT_EQ(reads.pairs.sizes(), (at::IntArrayRef{task.pairs, task.pairs}));
  EXPECT_TRUE(reads.delta.gt(0).logical_and(reads.delta.lt(1)).all().item<bool>());
  // The readout of a new model is the identity, so the weights of the slots are a softmax.
  EXPECT_TRUE(at::allclose(reads.slots.sum(0), at::ones({task.context()}, at::kDouble), 1e-6, 1e-6));
  for (int64_t pair = 0; pair < task.pairs; ++pair) {
    const int64_t written = 2 * pair + reads.lag;
    if (written > 0) {
      EXPECT_TRUE(std::isnan(reads.ages[pair][written - 1].item<double>()));
    }
    EXPECT_EQ(reads.ages[pair][written].item<double>(), 0);
    const double moved = std::fmod(reads.delta.slice(0, written + 1).sum().item<double>(), static_cast<double>(m));
    EXPECT_NEAR(reads.ages[pair][task.context() - 1].item<double>(), moved, 1e-6);
    const auto asked = reads.order[pair].item<int64_t>();
    EXPECT_EQ(ids[task.first_query() + 2 * pair].item<int64_t>(), ids[2 * asked].item<int64_t>());
  }
}

TEST(LossFigure, SmoothsBesideTheRawLine) {
  std::vector<nlohmann::ordered_json> rows;
  for (int i = 1; i <= 400; ++i) {
    rows.push_back({{"step", i}, {"loss", 3.0 + (i % 2 == 0 ? 0.5 : -0.5)}});
    if (i % 100 == 0) rows.back()["eval_loss"] = 3.1;
  }
  rows.push_back({{"step", 401}, {"loss", nullptr}});
  const RunLosses run = RunLosses::of("a", rows);
  EXPECT_EQ(run.training.size(), 400U);
  EXPECT_EQ(run.validation.size(), 4U);
  const std::vector<draw::Point> smooth = smoothed(run.training);
  ASSERT_EQ(smooth.size(), 400U);
  EXPECT_EQ(smooth.front().y, run.training.front().y);  // the line begins and ends at the run's own losses
  EXPECT_EQ(smooth.back().y, run.training.back().y);
  for (size_t i = 20; i < 380; ++i) EXPECT_NEAR(smooth[i].y, 3.0, 0.05);
  EXPECT_TRUE(smoothed({}).empty());
  EXPECT_EQ(smoothed({{1, NAN}, {2, 5}}).size(), 1U);

  const draw::Figure figure = loss_figure("title", {run});
  const auto& plot = std::get<draw::LinePlot>(figure.panels.at(0));
  ASSERT_EQ(plot.lines.size(), 3U);
  EXPECT_LT(plot.lines[0].width, plot.lines[1].width);
  EXPECT_LT(plot.lines[0].opacity, plot.lines[1].opacity);
  EXPECT_TRUE(plot.lines[2].dots);
  const draw::Figure two = loss_figure("title", {run, RunLosses::of("b", rows)});
  const auto& both = std::get<draw::LinePlot>(two.panels.at(0));
  EXPECT_NE(both.lines[1].color, both.lines[4].color);
  EXPECT_EQ(both.lines[4].name, "b");
  EXPECT_NO_THROW(draw::draw_figure(loss_figure("title", {RunLosses{}}), draw::Format::kSvg));
}

}  // namespace
}  // namespace cyfa
