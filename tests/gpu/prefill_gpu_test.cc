// Tests the sm90 engine's forward over whole sequences: prompts that are filled up to whole tiles and replayed as graphs, packed sequences,
// states that steps and further parts continue. The judge is the plain model in fp64 on the CPU.
#include <gtest/gtest.h>

#include "cyfa/engine/engine.h"
#include "tests/gpu/on_gpu.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class GpuPrefill : public OnGpu<testing::TestWithParam<std::pair<int64_t, int64_t>>> {  // width of the heads, slots
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    const auto [width, slots] = GetParam();
    const Json config = {{"model_type", "cyclic_flow_attention"},
                         {"hidden_size", 2 * width},
                         {"num_hidden_layers", 2},
                         {"num_heads", 2},
                         {"head_dim", width},
                         {"num_slots", slots},
                         {"vocab_size", 64},
                         {"intermediate_size", 128},
                         {"bos_token_id", 1},
                         {"eos_token_id", 2}};
    exact_ = std::make_unique<CausalLM>(ModelConfig::parse(config));
    exact_->initialise(3);
    model_ = std::make_unique<CausalLM>(ModelConfig::parse(config));
    for (size_t id = 0; id < exact_->parameters().size(); ++id) {
      at::manual_seed(static_cast<uint64_t>(id));
      at::Tensor& p = exact_->parameters()[id];
      model_->parameters()[id] = (p + at::randn(p.sizes()) * 0.02).to(at::kCUDA, at::kBFloat16);
      p = model_->parameters()[id].to(at::kCPU, at::kDouble);
    }
  }

  at::Tensor draw(int64_t tokens) const { return at::randint(3, 64, {1, tokens}, at::kLong); }

  void expect_exact(const LmOutput& got, const at::Tensor& ids, const std::optional<at::Tensor>& borders = {}, int64_t first = 0) const {
    const LmOutput want = exact_->forward(exact_->weights(), ids, borders);
    const at::Tensor rest = want.hidden.narrow(1, first, ids.size(1) - first);
    EXPECT_LT(relative_l2(got.hidden.to(at::kCPU), rest), 0.02) << ids.size(1) << " tokens";
    // Keys and values (0 and 1) are coordinates at the absolute clock, a sum of rounded increments: their phases drift away from the exact
    // ones in any bf16 computation. What they hold is tested by the tests that continue them.
    for (size_t i = 0; i < want.final_state.layers.size(); ++i) {
      for (size_t j = 2; j < want.final_state.layers[i].size(); ++j) {
        EXPECT_LT(relative_l2(got.final_state.layers[i][j].to(at::kCPU), want.final_state.layers[i][j]), 0.02)
            << ids.size(1) << " tokens, layer " << i << ", state " << j;
      }
    }
  }

  static void expect_same(const LmOutput& a, const LmOutput& b, const std::string& what) {
    EXPECT_TRUE(same_bits(a.hidden.to(at::kCPU), b.hidden.to(at::kCPU))) << what;
    for (size_t i = 0; i < a.final_state.layers.size(); ++i) {
      for (size_t j = 0; j < a.final_state.layers[i].size(); ++j) {
        EXPECT_TRUE(same_bits(a.final_state.layers[i][j].to(at::kCPU), b.final_state.layers[i][j].to(at::kCPU)))
            << what << ", layer " << i << ", state " << j;
      }
    }
  }

  const at::NoGradGuard no_grad_;
  std::unique_ptr<CausalLM> exact_, model_;
};

// The first forward of a number of tiles runs eagerly, the second records a graph, further ones replay it with other lengths.
TEST_P(GpuPrefill, PromptsAreExactHoweverTheyRun) {
  const auto recorded = prepare_steps(*model_, {.engine = "sm90"}), eager = prepare_steps(*model_, {.engine = "sm90", .record = false});
  at::manual_seed(7);
  for (const int64_t T : {100, 128, 1, 127, 2, 3, 300, 257, 384, 129, 256, 130}) {
    const at::Tensor ids = draw(T);
    const LmOutput got = recorded->forward(ids);
    expect_exact(got, ids);
    expect_same(got, eager->forward(ids.to(at::kCUDA)), std::to_string(T) + " tokens, recorded and eager");
  }
  EXPECT_TRUE(recorded->notes().empty()) << recorded->notes().front();
}

TEST_P(GpuPrefill, PartsContinueStates) {
  const auto recorded = prepare_steps(*model_, {.engine = "sm90"}), eager = prepare_steps(*model_, {.engine = "sm90", .record = false});
  at::manual_seed(8);
  for (const auto& [T, cut] : {std::pair<int64_t, int64_t>{200, 128}, {200, 130}, {140, 139}, {140, 138}, {140, 1}, {300, 200}}) {
    const at::Tensor ids = draw(T);
    const LmOutput first = recorded->forward(ids.narrow(1, 0, cut));
    const ModelState before = first.final_state.clone();
    const LmOutput got = recorded->forward(ids.narrow(1, cut, T - cut), std::nullopt, &first.final_state);
    expect_exact(got, ids, {}, cut);
    expect_same(got, eager->forward(ids.narrow(1, cut, T - cut), std::nullopt, &before), std::to_string(T) + " tokens from a state");
    for (size_t i = 0; i < before.layers.size(); ++i) {
      for (size_t j = 0; j < before.layers[i].size(); ++j) EXPECT_TRUE(at::equal(before.layers[i][j], first.final_state.layers[i][j]));
    }
  }
  EXPECT_TRUE(recorded->notes().empty()) << recorded->notes().front();
}

// A prompt with numbers that are not finite leaves nothing behind in the memory of the graphs.
TEST_P(GpuPrefill, ADamagedStateStaysInItsOwnPrompt) {
  const auto engine = prepare_steps(*model_, {.engine = "sm90"});
  at::manual_seed(9);
  const at::Tensor long_ids = draw(128), ids = draw(70);
  for (int i = 0; i < 3; ++i) {
    ModelState state = model_->initial_state(1);
    const LmOutput want = engine->forward(ids, std::nullopt, &state);
    state.layers[0][0].fill_(NAN);
    EXPECT_FALSE(at::isfinite(engine->forward(long_ids, std::nullopt, &state).hidden).all().item<bool>());
    state = model_->initial_state(1);
    expect_same(engine->forward(ids, std::nullopt, &state), want, "after a damaged state");
  }
}

TEST_P(GpuPrefill, BatchesAndPackedSequencesAreExact) {
  const auto engine = prepare_steps(*model_, {.engine = "sm90"});
  at::manual_seed(10);
  const at::Tensor ids = draw(500), borders = at::tensor({0, 1, 130, 130, 133, 389, 500}, at::kLong);
  expect_exact(engine->forward(ids, borders), ids, borders);
  expect_same(engine->forward(ids, borders), engine->forward(ids.to(at::kCUDA), borders.to(at::kCUDA)), "ids on the device");
  const at::Tensor batch = at::randint(3, 64, {3, 131}, at::kLong);
  const LmOutput out = engine->forward(batch);
  expect_exact(out, batch);
  const at::Tensor next = at::randint(3, 64, {3, 20}, at::kLong);
  expect_exact(engine->forward(next, std::nullopt, &out.final_state), at::cat({batch, next}, 1), {}, 131);
}

TEST_P(GpuPrefill, StepsContinueAPrompt) {
  const auto engine = prepare_steps(*model_, {.engine = "sm90"});
  at::manual_seed(11);
  const at::Tensor ids = draw(150);
  for (int run = 0; run < 3; ++run) {
    ModelState state = engine->forward(ids.narrow(1, 0, 140)).final_state;
    at::Tensor logits;
    for (int64_t t = 140; t < 150; ++t) logits = engine->step(ids.select(1, t).contiguous(), state);
    const Weights wide = exact_->weights();
    EXPECT_LT(relative_l2(logits.to(at::kCPU), exact_->head(wide, exact_->forward(wide, ids).hidden.select(1, 149))), 0.03);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, GpuPrefill,
                         testing::Values(std::pair(64, 64), std::pair(128, 128), std::pair(256, 128), std::pair(256, 256)),
                         [](const auto& size) {
                           return "Width" + std::to_string(size.param.first) + "Slots" + std::to_string(size.param.second);
                         });

}  // namespace
}  // namespace cyfa::test
