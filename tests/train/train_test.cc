// Tests training: recipes, the learning rate schedule, bitwise resume, and error handling.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/train/recall.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

namespace fs = std::filesystem;

Recipe small_recipe(int64_t steps) {
  Recipe r;
  r.model = "small";
  r.steps = steps;
  r.batch = 4;
  r.context = 24;
  r.rate = 3e-3;
  r.warmup = 4;
  r.log_every = 1;
  return r;
}

BatchSource random_batches(const CausalLM& model, int64_t rows, int64_t T) {
  return [&model, rows, T](int64_t index) {
    const at::Tensor ids = random_ids(model, {rows, T + 1}, 1000 + static_cast<uint64_t>(index));
    return TrainBatch{ids.narrow(1, 0, T), ids.narrow(1, 1, T), std::nullopt};
  };
}

TEST(Recipe, ReadsWhatItWrites) {
  const Folder folder;
  Recipe r = small_recipe(7);
  r.data = "a \"quoted\" \\ path\twith\na line \x1b\x7f and \xc3\xa4";
  r.rate = 0.1 + 0.2;
  r.seed = 18446744073709551615U;
  r.recompute = true;
  std::ofstream(folder / "r.toml") << r.toml();
  EXPECT_EQ(Recipe::read(folder / "r.toml").toml(), r.toml());
  for (const char* name : {"cyfa-400m", "cyfa-800m", "cyfa-1.4b", "bytes"}) {
    const Recipe own = Recipe::read(std::string(CYFA_SOURCE_DIR) + "/recipes/" + name + ".toml");
    EXPECT_NO_THROW(own.check());
    EXPECT_TRUE(fs::exists(fs::path(CYFA_SOURCE_DIR) / own.model));
  }
  // Continued with a longer context, a step has as many tokens as in pretraining.
  for (const auto& [longer, first] :
       {std::pair("continue-8k-400m", "cyfa-400m"), std::pair("continue-8k", "cyfa-800m"), std::pair("continue-8k-1.4b", "cyfa-1.4b")}) {
    const Recipe now = Recipe::read(std::string(CYFA_SOURCE_DIR) + "/recipes/" + longer + ".toml");
    const Recipe then = Recipe::read(std::string(CYFA_SOURCE_DIR) + "/recipes/" + first + ".toml");
    EXPECT_EQ(now.batch * now.context, then.batch * then.context) << longer;
    EXPECT_DOUBLE_EQ(now.rate, then.rate * then.final_rate) << longer;
    EXPECT_TRUE(now.skip_read) << longer;
  }
}

TEST(Recipe, ErrorsNameTheKey) {
  const Folder folder;
  const auto error = [&](const std::string& text) -> std::string {
    std::ofstream(folder / "r.toml") << text;
    try {
      Recipe::read(folder / "r.toml").check();
    } catch (const std::exception& e) {
      return e.what();
    }
    return "no error";
  };
  const std::string model = "model = \"m\"\n";
  EXPECT_EQ(error(model), "no error");
  EXPECT_EQ(error(model + "dtype = \"fp8\"\ndevice = \"cuda\""), "no error");
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{{"setps = 3", "setps"},
                                                                                    {"steps = \"3\"", "steps"},
                                                                                    {"steps = 1.5", "steps"},
                                                                                    {"rate = \"x\"", "rate"},
                                                                                    {"rate = -1.0", "rate"},
                                                                                    {"recompute = 1", "recompute"},
                                                                                    {"schedule = \"linear\"", "schedule"},
                                                                                    {"beta2 = 1.0", "beta2"},
                                                                                    {"accumulate = 3", "accumulate"},
                                                                                    {"dtype = \"fp4\"", "dtype"},
                                                                                    {"dtype = \"fp8\"", "Hopper"},
                                                                                    {"steps = ", "line"}}) {
    EXPECT_NE(error(model + text).find(words), std::string::npos) << text << ": " << error(model + text);
  }
  EXPECT_NE(error("").find("model"), std::string::npos);
  Recipe r;
  EXPECT_THROW(r.set("steps"), std::invalid_argument);
  EXPECT_THROW(r.set("steps=ten"), std::invalid_argument);
  EXPECT_THROW(r.set("nothing=1"), std::invalid_argument);
  EXPECT_THROW(r.set("seed=18446744073709551616"), std::invalid_argument);
  EXPECT_THROW(r.set("seed=-1"), std::invalid_argument);
  EXPECT_NE(error(model + "seed = \"18446744073709551616\"").find("seed"), std::string::npos);
  EXPECT_NE(error(model + "seed = -1").find("seed"), std::string::npos);
  Recipe unreadable;
  unreadable.model = "m";
  for (const char* path : {"\xff", "a\xc3", "\xed\xa0\x80"}) {
    unreadable.data = path;
    EXPECT_THROW(unreadable.check(), std::invalid_argument) << path;
  }
  r.set("rate=1e-3");
  EXPECT_EQ(r.rate, 1e-3);
  EXPECT_THROW(Recipe::read(folder / "absent.toml"), io::FileError);
}

TEST(Schedule, RisesAndFalls) {
  Recipe r;
  r.steps = 2048;
  r.warmup = 1024;
  r.rate = 1;
  EXPECT_DOUBLE_EQ(learning_rate(r, 0), 1.0 / 1024);
  EXPECT_DOUBLE_EQ(learning_rate(r, 1023), 1);
  EXPECT_DOUBLE_EQ(learning_rate(r, 1024), 1);
  EXPECT_NEAR(learning_rate(r, 1536), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(r, 2048), 0.1, 1e-12);
  EXPECT_NEAR(learning_rate(r, 5000), 0.1, 1e-12);
  r.schedule = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(r, 2000), 1);
}

void expect_equal_models(const CausalLM& a, const CausalLM& b) {
  for (size_t id = 0; id < a.parameters().size(); ++id)
    EXPECT_TRUE(at::equal(a.parameters()[id], b.parameters()[id])) << a.table().specs()[id].name;
}

// 20 steps in one run are bitwise the same as 10 steps, a stop, and 10 steps resumed from the checkpoint.
TEST(Trainer, GoesOnBitForBit) {
  const Folder folder;
  CausalLM whole = small_model(small_config());
  {
    Trainer trainer(whole, small_recipe(20), random_batches(whole, 4, 24), {}, nullptr);
    EXPECT_EQ(trainer.run(), 20);
  }
  const fs::path run = folder / "run";
  {
    CausalLM first = small_model(small_config());
    RunFolder to(run, false);
    to.start(small_recipe(20), Json::object());
    Trainer trainer(first, small_recipe(20), random_batches(first, 4, 24), {}, &to);
    trainer.should_stop = [&] { return trainer.step() == 10; };
    EXPECT_EQ(trainer.run(), 10);
  }
  RunFolder from(run, true);
  ASSERT_EQ(from.checkpoints().size(), 1U);
  const RunCheckpoint checkpoint = from.checkpoints().back();
  EXPECT_EQ(checkpoint.step, 10);
  CausalLM second = load_checkpoint(checkpoint.path, {at::kFloat, at::kCPU, true});
  Trainer trainer(second, small_recipe(20), random_batches(second, 4, 24), {}, &from);
  trainer.resume(checkpoint);
  EXPECT_EQ(trainer.run(), 20);
  expect_equal_models(whole, second);
  EXPECT_EQ(from.metrics().size(), 20U);
  for (const char* name : {"loss.png", "loss.svg"}) EXPECT_TRUE(fs::exists(run / name)) << name;
}

// Every kind of model fits a repeated batch, and two runs are identical. Activation checkpointing changes only the last bits.
class EveryKind : public testing::TestWithParam<ModelCase> {};

TEST_P(EveryKind, TrainsAndRepeatsBitForBit) {
  const auto trained = [](bool recompute) {
    CausalLM model(ModelConfig::parse(GetParam().config));
    model.initialise(5);
    const BatchSource batches = random_batches(model, 4, 24);
    Recipe r = small_recipe(12);
    r.recompute = recompute;
    const auto loss = [&] {
      const at::NoGradGuard no_grad;
      const TrainBatch batch = batches(0);
      return model.loss(model.weights(), batch.inputs, batch.targets).item<double>();
    };
    const double before = loss();
    Trainer trainer(
        model, r, [&](int64_t) { return batches(0); }, {}, nullptr);
    EXPECT_EQ(trainer.run(), 12);
    const double after = loss();
    EXPECT_LT(after, before - 0.05);
    return std::pair(std::move(model), after);
  };
  const auto once = trained(false), again = trained(false), recomputed = trained(true);
  expect_equal_models(once.first, again.first);
  EXPECT_NEAR(recomputed.second, once.second, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryKind, testing::ValuesIn(model_cases()), [](const auto& model) { return model.param.name; });

TEST(Trainer, EveryWayOfComputingAStepGivesTheSameStep) {
  const auto trained = [](const std::function<void(Recipe&)>& change) {
    CausalLM model = small_model(small_config());
    Recipe r = small_recipe(3);
    change(r);
    const BatchSource whole = random_batches(model, 4, 24);
    const int64_t parts = r.accumulate;
    Trainer trainer(
        model, r,
        [whole, parts](int64_t index) {
          const TrainBatch batch = whole(index / parts);
          const int64_t rows = 4 / parts, first = index % parts * rows;
          return TrainBatch{batch.inputs.narrow(0, first, rows), batch.targets.narrow(0, first, rows), std::nullopt};
        },
        {}, nullptr);
    trainer.run();
    return model;
  };
  const CausalLM plain = trained([](Recipe&) {});
  const auto nearest = [&](const CausalLM& other) {
    double worst = 0;
    for (size_t id = 0; id < plain.parameters().size(); ++id) {
      const at::Tensor a = plain.parameters()[id].detach(), b = other.parameters()[id].detach();
      worst = std::max(worst, (a - b).norm().item<double>() / std::max(1e-3, a.norm().item<double>()));
    }
    return worst;
  };
  EXPECT_LT(nearest(trained([](Recipe& r) { r.accumulate = 2; })), 2e-4);
  EXPECT_LT(nearest(trained([](Recipe& r) { r.recompute = true; })), 2e-5);
  EXPECT_LT(nearest(trained([](Recipe& r) { r.dtype = "bf16"; })), 5e-2);
  EXPECT_GT(nearest(trained([](Recipe& r) { r.rate = 4e-3; })), 1e-4);
}

TEST(Trainer, PackedRowsAreTheRows) {
  const CausalLM model = small_model(small_config());
  const TrainBatch batch = random_batches(model, 3, 24)(0);
  const Weights w = model.weights();
  const double rows = model.loss(w, batch.inputs, batch.targets).item<double>();
  const double packed = model.loss(w, batch.inputs, batch.targets, at::tensor({0, 24, 48, 72}, at::kLong)).item<double>();
  EXPECT_NEAR(rows, packed, 1e-5);
  EXPECT_NE(rows, model.loss(w, batch.inputs, batch.targets, at::tensor({0, 10, 24, 48, 72}, at::kLong)).item<double>());
}

TEST(Trainer, ALossThatIsNotFiniteLeavesTheLastCheckpoint) {
  const Folder folder;
  CausalLM model = small_model(small_config());
  RunFolder to(folder / "run", false);
  to.start(small_recipe(6), Json::object());
  Recipe r = small_recipe(6);
  r.save_every = 2;
  const BatchSource good = random_batches(model, 4, 24);
  Trainer trainer(
      model, r,
      [&](int64_t index) {
        if (index == 4) model.parameters()[0].data().fill_(NAN);
        return good(index);
      },
      {}, &to);
  try {
    trainer.run();
    FAIL();
  } catch (const TrainingError& e) {
    EXPECT_NE(std::string(e.what()).find("step 5"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("step-00000004"), std::string::npos) << e.what();
  }
  EXPECT_EQ(to.checkpoints().back().step, 4);
  EXPECT_TRUE(load_checkpoint(to.checkpoints().back().path).parameters()[0].isfinite().all().item<bool>());
}

TEST(RunFolder, KeepsTheNewestAndTheBest) {
  const Folder folder;
  CausalLM model = small_model(small_config(1));
  RunFolder to(folder / "run", false);
  to.start(small_recipe(1), Json::object());
  const Optimizer optimizer(model, small_recipe(1));
  const std::vector<double> losses = {3, 1, 2, 4, 5};
  for (size_t i = 0; i < losses.size(); ++i) {
    StepRecord record;
    record.step = static_cast<int64_t>(i + 1);
    record.eval_loss = losses[i];
    to.save(model, optimizer, record, small_recipe(1));
  }
  std::vector<int64_t> steps;
  for (const RunCheckpoint& c : to.checkpoints()) steps.push_back(c.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 4, 5}));
}

TEST(RunFolder, RefusesToMixRuns) {
  const Folder folder;
  EXPECT_THROW(RunFolder(folder / "run", true), io::FileError);
  RunFolder(folder / "run", false).start(small_recipe(1), Json::object());
  EXPECT_THROW(RunFolder(folder / "run", false), io::FileError);
  EXPECT_NO_THROW(RunFolder(folder / "run", true));
}

TEST(Optimizer, DecaysWhatTheTableSays) {
  CausalLM model = small_model(small_config(1));
  Recipe r = small_recipe(1);
  r.weight_decay = 0.5;
  for (at::Tensor& p : model.parameters()) {
    p.requires_grad_();
    p.mutable_grad() = at::zeros_like(p);
  }
  std::vector<at::Tensor> before;
  for (const at::Tensor& p : model.parameters()) before.push_back(p.detach().clone());
  Optimizer optimizer(model, r);
  optimizer.step(optimizer.gradients(), 0.1, 1, optimizer.gradient_norm(optimizer.gradients()), at::zeros({}, at::kDouble));
  for (size_t id = 0; id < before.size(); ++id) {
    const at::Tensor wanted = model.table().specs()[id].weight_decay ? before[id] * 0.95 : before[id];
    EXPECT_TRUE(at::allclose(model.parameters()[id].detach(), wanted, 1e-6, 1e-8)) << model.table().specs()[id].name;
  }
}

TEST(Optimizer, TakesNoStepThatIsNotFinite) {
  CausalLM model = small_model(small_config(1));
  Optimizer optimizer(model, small_recipe(1));
  for (const double loss : {1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    std::vector<at::Tensor> before;
    for (at::Tensor& p : model.parameters()) {
      before.push_back(p.detach().clone());
      p.mutable_grad() = at::ones_like(p);
    }
    optimizer.step(optimizer.gradients(), 0.1, 1, optimizer.gradient_norm(optimizer.gradients()), at::full({}, loss, at::kDouble));
    for (size_t id = 0; id < before.size(); ++id) EXPECT_EQ(at::equal(model.parameters()[id], before[id]), !std::isfinite(loss)) << id;
  }
}

TEST(CrossEntropy, IsTorchsLossAndGradient) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const auto options = at::TensorOptions(type);
    at::Tensor x = at::randn({300, 12}, options).requires_grad_(), weight = at::randn({40, 12}, options).requires_grad_();
    at::Tensor targets = at::randint(0, 40, {300}, at::kLong);
    targets.narrow(0, 50, 100).fill_(ops::kIgnore);
    const at::Tensor loss = ops::linear_cross_entropy(x, weight, targets);
    (loss * 3).backward();
    const at::Tensor gx = x.grad().clone(), gw = weight.grad().clone();
    x.mutable_grad().reset();
    weight.mutable_grad().reset();
    const at::Tensor plain = at::cross_entropy_loss(at::linear(x, weight), targets);
    (plain * 3).backward();
    const double limit = type == at::kDouble ? 1e-12 : 1e-5;
    EXPECT_NEAR(loss.item<double>(), plain.item<double>(), limit);
    EXPECT_LT((gx - x.grad()).norm().item<double>() / x.grad().norm().item<double>(), limit);
    EXPECT_LT((gw - weight.grad()).norm().item<double>() / weight.grad().norm().item<double>(), limit);
    const at::NoGradGuard no_grad;
    EXPECT_NEAR(ops::linear_cross_entropy(x, weight, targets).item<double>(), plain.item<double>(), limit);
    EXPECT_EQ(ops::linear_cross_entropy(x, weight, at::full({300}, ops::kIgnore, at::kLong)).item<double>(), 0);
  }
}

TEST(Recall, EveryQuestionHasItsAnswer) {
  RecallTask task;
  const TrainBatch batch = task.at(3);
  EXPECT_TRUE(at::equal(batch.inputs, task.at(3).inputs));
  EXPECT_FALSE(at::equal(batch.inputs, task.at(4).inputs));
  EXPECT_EQ(batch.targets.ne(ops::kIgnore).sum().item<int64_t>(), task.batch * task.pairs);
  for (int64_t b = 0; b < 5; ++b) {
    std::map<int64_t, int64_t> shown;
    for (int64_t i = 0; i < task.pairs; ++i) shown[batch.inputs[b][2 * i].item<int64_t>()] = batch.inputs[b][2 * i + 1].item<int64_t>();
    EXPECT_EQ(shown.size(), static_cast<size_t>(task.pairs));
    for (int64_t i = task.pairs; i < 2 * task.pairs; ++i) {
      EXPECT_EQ(batch.targets[b][2 * i].item<int64_t>(), shown.at(batch.inputs[b][2 * i].item<int64_t>()));
    }
  }
}

TEST(Health, FiguresAreInTheirRanges) {
  const CausalLM model = small_model(small_config());
  std::map<std::string, double> figures;
  for (const Figure& f : model.health(model.weights(), random_ids(model, {2, 30}))) figures[f.name] = f.value;
  for (const char* name :
       {"clock_mean", "clock_least", "clock_most", "alpha_least", "alpha_mean", "beta_mean", "slot_occupancy", "read_entropy"}) {
    ASSERT_TRUE(figures.contains(name)) << name;
    EXPECT_GT(figures[name], 0) << name;
    EXPECT_LE(figures[name], 1 + 1e-9) << name;
  }
  EXPECT_LT(figures["clock_least"], figures["clock_most"]);
}

}  // namespace
}  // namespace cyfa::test
