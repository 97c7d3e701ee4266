// Decoding on a GPU: the step that is replayed is the step.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "cyfa/decode/step_graph.h"
#include "cyfa/ops/check.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class GpuDecode : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device, or a torch without CUDA";
  }
};

TEST_F(GpuDecode, AReplayedStepIsTheStep) {
  CausalLM model(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/cyfa-9m.json"));
  model.initialise(1, at::kBFloat16, at::kCUDA);
  const Weights w = model.step_weights();
  for (const int64_t B : {1, 5}) {
    StepGraph graph(model, w);
    ModelState replayed = model.initial_state(B), plain = model.initial_state(B);
    for (int64_t t = 0; t < 6; ++t) {
      const at::Tensor ids = at::randint(0, model.config().vocab_size, {B}, at::kLong);
      const at::Tensor want = model.step(w, ids, plain).to(at::kCPU);
      EXPECT_TRUE(same_bits(graph.step(ids, replayed).to(at::kCPU), want)) << "token " << t;
      EXPECT_EQ(graph.recorded(), t > 0);
    }
    for (size_t layer = 0; layer < plain.layers.size(); ++layer) {
      for (size_t i = 0; i < plain.layers[layer].size(); ++i) {
        EXPECT_TRUE(same_bits(replayed.layers[layer][i].to(at::kCPU), plain.layers[layer][i].to(at::kCPU)))
            << "layer " << layer << " " << i;
      }
    }
    EXPECT_THROW(graph.step(at::zeros({B + 1}, at::kLong), replayed), ops::ArgumentError);
    EXPECT_THROW(graph.step(at::full({B}, model.config().vocab_size, at::kLong), replayed), ops::ArgumentError);
    EXPECT_TRUE(graph.recorded());
    ModelState other = model.initial_state(B);
    graph.step(at::zeros({B}, at::kLong), other);
    EXPECT_FALSE(graph.recorded()) << "another state begins anew";
  }
}

// In bf16 projections of one input are one product, and norms add the residual: another rounding of the same step, judged by fp32.
TEST_F(GpuDecode, APackedStepIsAsGoodAsTheStep) {
  CausalLM narrow(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/cyfa-9m.json"));
  narrow.initialise(1, at::kBFloat16, at::kCUDA);
  CausalLM wide(narrow.config());
  wide.initialise(1, at::kFloat, at::kCUDA);
  for (size_t id = 0; id < wide.parameters().size(); ++id) wide.parameters()[id].copy_(narrow.parameters()[id]);
  const Weights packed = narrow.step_weights(), exact = wide.step_weights();
  ASSERT_FALSE(packed.gate_up.empty());
  Weights plain = packed;
  plain.gate_up.clear();
  for (std::vector<at::Tensor>& derived : plain.derived) derived.resize(1);
  for (const int64_t B : {1, 5}) {
    ModelState of_packed = narrow.initial_state(B), of_plain = narrow.initial_state(B), of_exact = wide.initial_state(B);
    for (int64_t t = 0; t < 20; ++t) {
      const at::Tensor ids = at::randint(0, narrow.config().vocab_size, {B}, at::kLong);
      const at::Tensor want = wide.step(exact, ids, of_exact);
      const double error = relative_l2(narrow.step(packed, ids, of_packed).to(at::kCPU), want.to(at::kCPU));
      const double of_others = relative_l2(narrow.step(plain, ids, of_plain).to(at::kCPU), want.to(at::kCPU));
      EXPECT_LT(error, 1.5 * of_others + 2e-3) << "token " << t << ", batch " << B;
    }
  }
}

}  // namespace
}  // namespace cyfa::test
