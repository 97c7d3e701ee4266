// Tests the decode step of one sequence as one launch against the five launches a layer, against fp32, against itself, and what happens
// when it cannot finish.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <chrono>
#include <iostream>

#include "cyfa/engine/recorded.h"
#include "cyfa/engine/sm90/sm90.h"
#include "cyfa/engine/sm90/whole_step.h"
#include "tests/gpu/on_gpu.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class GpuWholeStep : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    at::manual_seed(1);
  }

  // A config of the repository with some keys replaced.
  static CausalLM model_of(const std::string& config, const Json& changes, at::ScalarType type = at::kBFloat16) {
    Json json = ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/" + config).json;
    json.update(changes);
    CausalLM model(ModelConfig::parse(json));
    model.initialise(1, type, at::kCUDA);
    // Initial values of 0 and 1 would hide an exchanged vector.
    for (size_t id = 0; id < model.parameters().size(); ++id) {
      at::Tensor& p = model.parameters()[id];
      if (p.dim() == 1) p.add_(at::randn(p.sizes(), p.options().dtype(at::kFloat)).to(p.scalar_type()), 0.1);
    }
    return model;
  }

  static std::unique_ptr<StepEngine> engine_of(CausalLM& model, WholeStepUse use) {
    return prepare_steps(model, {.engine = "sm90", .record = false, .whole_step = use});
  }

  static at::Tensor next_id(const CausalLM& model) { return at::randint(0, model.config().vocab_size, {1}, at::kLong); }

  static void expect_same(const ModelState& a, const ModelState& b, const std::string& what) {
    for (size_t layer = 0; layer < a.layers.size(); ++layer) {
      for (size_t i = 0; i < a.layers[layer].size(); ++i) {
        EXPECT_TRUE(same_bits(a.layers[layer][i].to(at::kCPU), b.layers[layer][i].to(at::kCPU)))
            << what << ", layer " << layer << ", state " << i;
      }
    }
  }
  static constexpr double kLimit = 0.05;  // that of `cyfa bench decode` for bf16

  static void expect_near(const ModelState& got, const ModelState& want, const std::string& what) {
    for (size_t layer = 0; layer < got.layers.size(); ++layer) {
      for (size_t i = 0; i < got.layers[layer].size(); ++i) {
        const at::Tensor a = got.layers[layer][i].to(at::kCPU), b = want.layers[layer][i].to(at::kCPU);
        if (b.numel() == 0) continue;
        const double error = relative_l2(a, b);
        EXPECT_LT(error, kLimit) << what << ", layer " << layer << ", state " << i << " of shape " << a.sizes();
        if (!(error < kLimit)) return;  // what follows is a consequence
      }
    }
  }

  // Steps of one launch and of five launches from the same states, which then follow the first.
  static void expect_steps(CausalLM& model, int64_t steps) {
    const auto whole = engine_of(model, WholeStepUse::kOn), five = engine_of(model, WholeStepUse::kOff);
    ASSERT_EQ(whole->path(1), "one launch");
    ModelState of_whole = model.initial_state(1);
    for (int64_t t = 0; t < steps; ++t) {
      const at::Tensor id = next_id(model);
      ModelState of_five = of_whole.clone();
      const at::Tensor want = five->step(id, of_five).to(at::kCPU);
      const at::Tensor got = whole->step(id, of_whole).to(at::kCPU);
      torch::cuda::synchronize();
      ASSERT_NO_THROW(whole->check());
      const std::string what = "token " + std::to_string(t);
      EXPECT_LT(relative_l2(got, want), kLimit) << what;
      expect_near(of_whole, of_five, what);
      if (HasFailure()) return;
    }
    EXPECT_TRUE(whole->notes().empty()) << whole->notes().front();
  }
};

TEST_F(GpuWholeStep, IsTheStepOfFiveLaunches) {
  CausalLM model = model_of("cyfa-400m.json", {{"num_hidden_layers", 2}});
  expect_steps(model, 4);
}

TEST_F(GpuWholeStep, IsTheStepOfFiveLaunchesForOtherSizes) {
  const std::vector<std::pair<std::string, Json>> cases = {
      {"cyfa-9m.json", Json::object()},
      {"cyfa-4m.json", Json::object()},
      {"cyfa-bytes-2m.json", Json::object()},
      {"cyfa-800m.json", {{"num_hidden_layers", 2}, {"vocab_size", 4099}}},
      {"cyfa-1.4b.json", {{"num_hidden_layers", 2}}},
      {"cyfa-400m.json", {{"num_hidden_layers", 1}, {"num_slots", 96}, {"vocab_size", 4099}}},
      {"cyfa-400m.json", {{"num_hidden_layers", 1}, {"num_heads", 8}, {"head_dim", 128}, {"vocab_size", 100}}},
      {"cyfa-9m.json", {{"conv_size", 2}, {"conv_bias", true}, {"use_qk_norm", false}, {"num_hidden_layers", 3}}},
      {"cyfa-9m.json", {{"conv_size", 2}, {"readout", "identity"}, {"num_hidden_layers", 1}, {"num_heads", 1}}}};
  for (const auto& [config, changes] : cases) {
    SCOPED_TRACE(config + " " + changes.dump());
    CausalLM model = model_of(config, changes);
    expect_steps(model, 3);
  }
}

// Both round differently; both are compared with fp32.
TEST_F(GpuWholeStep, IsAsGoodAsTheStepOfFiveLaunches) {
  CausalLM narrow = model_of("cyfa-9m.json", Json::object()), wide = model_of("cyfa-9m.json", Json::object(), at::kFloat);
  for (size_t id = 0; id < wide.parameters().size(); ++id) wide.parameters()[id].copy_(narrow.parameters()[id]);
  const auto whole = engine_of(narrow, WholeStepUse::kOn), five = engine_of(narrow, WholeStepUse::kOff),
             exact = prepare_steps(wide, {.engine = "portable", .record = false});
  ModelState of_whole = narrow.initial_state(1), of_five = narrow.initial_state(1), of_exact = wide.initial_state(1);
  for (int64_t t = 0; t < 40; ++t) {
    const at::Tensor id = next_id(narrow), want = exact->step(id, of_exact).to(at::kCPU);
    const double error = relative_l2(whole->step(id, of_whole).to(at::kCPU), want);
    const double of_others = relative_l2(five->step(id, of_five).to(at::kCPU), want);
    EXPECT_LT(error, 1.5 * of_others + 2e-3) << "token " << t;
  }
  for (size_t layer = 0; layer < of_exact.layers.size(); ++layer) {
    for (size_t i = 0; i < of_exact.layers[layer].size(); ++i) {
      const at::Tensor want = of_exact.layers[layer][i].to(at::kCPU);
      const double error = relative_l2(of_whole.layers[layer][i].to(at::kCPU), want);
      EXPECT_LT(error, 1.5 * relative_l2(of_five.layers[layer][i].to(at::kCPU), want) + 2e-3) << "layer " << layer << ", state " << i;
    }
  }
}

TEST_F(GpuWholeStep, EqualStepsGiveEqualBitsWhateverIsInItsMemory) {
  CausalLM model = model_of("cyfa-400m.json", {{"num_hidden_layers", 3}});
  const auto engine = engine_of(model, WholeStepUse::kOn);
  fused::WholeStep* const whole = fused::whole_step_of(*engine);
  ASSERT_NE(whole, nullptr);
  ModelState first = model.initial_state(1), second = model.initial_state(1);
  for (int64_t t = 0; t < 6; ++t) {
    const at::Tensor id = next_id(model), want = engine->step(id, first).to(at::kCPU);
    if (t == 2) whole->words().random_();
    if (t == 3) whole->words().fill_(-1);
    if (t == 4) whole->words().zero_();
    EXPECT_TRUE(same_bits(engine->step(id, second).to(at::kCPU), want)) << "token " << t;
    expect_same(second, first, "token " + std::to_string(t));
  }
  engine->check();
}

TEST_F(GpuWholeStep, AReplayedStepIsTheStepAlsoAmongOtherBatches) {
  CausalLM model = model_of("cyfa-9m.json", Json::object());
  const std::shared_ptr<StepEngine> engine = engine_of(model, WholeStepUse::kOn);
  const auto recorded = record_steps(engine), of_others = record_steps(engine);
  ModelState replayed = model.initial_state(1), plain = model.initial_state(1), others = model.initial_state(3);
  for (int64_t t = 0; t < 40; ++t) {
    const at::Tensor id = next_id(model), want = engine->step(id, plain).to(at::kCPU);
    EXPECT_TRUE(same_bits(recorded->step(id, replayed).to(at::kCPU), want)) << "token " << t;
    of_others->step(at::randint(0, model.config().vocab_size, {3}, at::kLong), others);
  }
  expect_same(replayed, plain, "after 40 tokens");
  EXPECT_EQ(recorded->name(), "sm90+graph") << "a recording was given up";
  recorded->check();
}

// A batch that shrinks to one sequence goes on in one launch.
TEST_F(GpuWholeStep, GoesOnFromAStepOfSeveral) {
  CausalLM model = model_of("cyfa-9m.json", Json::object());
  const auto whole = engine_of(model, WholeStepUse::kOn), five = engine_of(model, WholeStepUse::kOff);
  ModelState several = model.initial_state(3);
  for (int64_t t = 0; t < 5; ++t) whole->step(at::randint(0, model.config().vocab_size, {3}, at::kLong), several);
  ModelState one = several.select({1}), want = one.clone();
  const at::Tensor id = next_id(model);
  EXPECT_LT(relative_l2(whole->step(id, one).to(at::kCPU), five->step(id, want).to(at::kCPU)), kLimit);
  expect_near(one, want, "the sequence that is left");
}

TEST_F(GpuWholeStep, SaysWhyItDoesNotRun) {
  const auto reason = [](const StepEngine& of) -> std::string {
    for (const std::string& note : of.notes()) {
      if (note.starts_with("one launch: ")) return note;
    }
    return {};
  };
  CausalLM narrow_heads = model_of("cyfa-9m.json", {{"head_dim", 32}});
  const auto engine = engine_of(narrow_heads, WholeStepUse::kOn);
  EXPECT_EQ(engine->path(1), "five launches a layer");
  ModelState state = narrow_heads.initial_state(1);
  engine->step(next_id(narrow_heads), state);
  EXPECT_EQ(reason(*engine), "one launch: the heads' value width is not 64, 128 or 256");

  CausalLM model = model_of("cyfa-9m.json", Json::object());
  const auto narrow_states = engine_of(model, WholeStepUse::kOn);
  ModelState in_bf16 = model.initial_state(1);
  model.set_state_type(in_bf16, at::kBFloat16);
  narrow_states->step(next_id(model), in_bf16);
  EXPECT_EQ(reason(*narrow_states), "one launch: the states are not contiguous in fp32, with a clock in fp64");
}

// Blocks that disagree about the launch's number wait for each other in vain: the step must end, say so, and leave a working engine.
TEST_F(GpuWholeStep, AStepThatCannotFinishEndsAndSaysWhere) {
  CausalLM model = model_of("cyfa-9m.json", {{"num_hidden_layers", 2}});
  const auto engine = engine_of(model, WholeStepUse::kOn);
  const at::Tensor id = next_id(model);
  ModelState before = model.initial_state(1);
  const at::Tensor want = engine->step(id, before).to(at::kCPU);
  fused::whole_step_of(*engine)->tickets().add_(50);
  ModelState lost = model.initial_state(1);
  EXPECT_TRUE(engine->step(id, lost).to(at::kCPU).isnan().any().item<bool>());
  try {
    engine->check();
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("did not come"), std::string::npos) << e.what();
    std::cout << e.what() << '\n';
  }
  ModelState again = model.initial_state(1);
  EXPECT_TRUE(same_bits(engine->step(id, again).to(at::kCPU), want)) << "after the failure";
}

// The 400M model: where the time of a step goes, and how long recorded steps take in one launch and in five a layer.
TEST_F(GpuWholeStep, PrintsItsTimes) {
  CausalLM model = model_of("cyfa-400m.json", Json::object());
  {
    const auto engine = engine_of(model, WholeStepUse::kTimed);
    ModelState state = model.initial_state(1);
    for (int64_t t = 0; t < 5; ++t) engine->step(next_id(model), state);
    for (const std::string& line : engine->notes()) std::cout << line << '\n';
    engine->check();
  }
  for (const WholeStepUse use : {WholeStepUse::kOn, WholeStepUse::kOff}) {
    const std::shared_ptr<StepEngine> engine = engine_of(model, use);
    const auto recorded = record_steps(engine);
    ModelState state = model.initial_state(1);
    const at::Tensor id = next_id(model).to(at::kCUDA);
    constexpr int kSteps = 500;
    for (int t = 0; t < 20; ++t) recorded->step(id, state);
    torch::cuda::synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int t = 0; t < kSteps; ++t) recorded->step(id, state);
    torch::cuda::synchronize();
    const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - begin;
    std::cout << engine->path(1) << ": " << passed.count() / kSteps << " us per step\n";
    recorded->check();
  }
}

}  // namespace
}  // namespace cyfa::test
