// Decoding on a GPU: the step in few launches is the step in many, and replayed it is the same.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <filesystem>

#include "cyfa/decode/step_graph.h"
#include "cyfa/engine/sm90/decode_rows.h"
#include "cyfa/engine/sm90/decode_step.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/dense/dense.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class GpuDecode : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device, or a torch without CUDA";
    at::manual_seed(1);
  }

  static at::Tensor draw(at::IntArrayRef shape, double scale = 1) { return at::randn(shape, at::TensorOptions(at::kCUDA)) * scale; }
  static at::Tensor matrix(int64_t rows, int64_t columns) { return draw({rows, columns}, 1 / std::sqrt(columns)).to(at::kBFloat16); }
  static ops::StepNorm norm(int64_t width) { return {1 + draw({width}, 0.1), 1e-6}; }
  static at::Tensor normed(const at::Tensor& x, const ops::StepNorm& norm) {
    const at::Tensor wide = x.to(at::kDouble);
    return wide * at::rsqrt(wide.square().mean(-1, true) + norm.eps) * norm.weight.to(at::kDouble);
  }
  static at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
    return at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t());
  }

  // A mixer of random weights after a few tokens' worth of state.
  static ops::FlowStep flow(int64_t B, int64_t D, int64_t H, int64_t width, int64_t M, at::ScalarType state = at::kFloat,
                            int64_t taps = 4) {
    ops::FlowStep f;
    f.w.projection.value = matrix((3 * H * width + width + 3 * H + 7) / 8 * 8, D);
    for (ops::Summed& conv : f.w.conv) conv.value = draw({H * width, 1, taps}, 0.5);
    f.w.conv_bias[1].value = draw({H * width}, 0.5);
    f.w.gate_up.value = matrix(H * width, width);
    f.w.gate_bias = draw({H * width}).to(at::kBFloat16);
    for (ops::Summed* gate : {&f.w.dt_bias, &f.w.A_log, &f.w.b_bias, &f.w.d_bias}) gate->value = draw({H});
    f.readout_table = ops::cyclic_flow_readout_table(draw({H, M - 1, M - 1}, 0.2));
    f.q_norm_weight = norm(width).weight;
    f.k_norm_weight = norm(width).weight;
    f.norm_eps = 1e-6;
    f.o_norm = norm(width);
    f.o_proj = matrix(D, H * width);
    f.k = draw({B, H, width, M}, 0.3).to(state);
    f.v = draw({B, H, M, width}, 0.3).to(state);
    f.clock = draw({B, H}, 50).abs().to(at::kDouble);
    for (at::Tensor& past : f.past) past = draw({B, taps - 1, H * width});
    torch::cuda::synchronize();
    return f;
  }
  static ops::FlowStep with_own_states(ops::FlowStep f) {
    for (at::Tensor* state : {&f.k, &f.v, &f.clock, &f.past[0], &f.past[1], &f.past[2]}) *state = state->clone();
    torch::cuda::synchronize();
    return f;
  }
  static void expect_same_states(const ops::FlowStep& a, const ops::FlowStep& b) {
    EXPECT_TRUE(same_bits(a.k.to(at::kCPU), b.k.to(at::kCPU)));
    EXPECT_TRUE(same_bits(a.v.to(at::kCPU), b.v.to(at::kCPU)));
    EXPECT_TRUE(same_bits(a.clock.to(at::kCPU), b.clock.to(at::kCPU)));
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(a.past[i].to(at::kCPU), b.past[i].to(at::kCPU))) << i;
  }
  // The mixer in launches of its own; the output's gate beside it.
  static std::pair<at::Tensor, at::Tensor> in_parts(const at::Tensor& x, const ops::FlowStep& f) {
    const int64_t B = x.size(0), H = f.readout_table.size(0), width = f.k.size(2);
    const ops::FlowStreams s = ops::flow_step(x, f.w, f.past);
    ops::CyclicFlowStepInputs in;
    in.q = s.q.view({B, H, width});
    in.k = s.k.view({B, H, width});
    in.v = s.v.view({B, H, width});
    in.log_alpha = s.log_alpha;
    in.delta = s.delta;
    in.beta = s.beta;
    in.readout_table = f.readout_table;
    in.q_norm_weight = f.q_norm_weight;
    in.k_norm_weight = f.k_norm_weight;
    ops::CyclicFlowOptions options;
    options.norm_eps = f.norm_eps;
    return {ops::cyclic_flow_step(in, {f.k, f.v, f.clock}, options), s.gate.view({B, H, width})};
  }

  // Three tokens of a mixer in one launch and in launches of its own: the same bits.
  static void expect_parts(int64_t B, int64_t width, int64_t M, at::ScalarType state, int64_t taps) {
    SCOPED_TRACE(std::to_string(B) + " sequences, heads of " + std::to_string(width) + ", " + std::to_string(taps) + " taps");
    const ops::FlowStep f = flow(B, 256, 4, width, M, state, taps), parts = with_own_states(f);
    for (int64_t t = 0; t < 3; ++t) {
      const at::Tensor x = draw({B, 256}).to(at::kBFloat16);
      const at::Tensor got = ops::flow_step_gated(x, f);
      ASSERT_TRUE(got.defined()) << "refused; the kernels are for Hopper";
      const auto [o, gate] = in_parts(x, parts);
      const at::Tensor want = ops::gated_rms_norm(o, f.o_norm.weight, f.o_norm.eps, gate).flatten(1);
      EXPECT_TRUE(same_bits(got.to(at::kCPU), want.to(at::kCPU))) << "token " << t;
    }
    expect_same_states(f, parts);
  }
};

TEST_F(GpuDecode, AMixerInOneLaunchIsItsParts) {
  for (const int64_t B : {1, 3, 8, 33, 70}) {
    for (const int64_t width : {64, 256}) {
      for (const at::ScalarType state : {at::kFloat, at::kBFloat16}) expect_parts(B, width, width == 64 ? 64 : 128, state, 4);
    }
  }
}

TEST_F(GpuDecode, AMixerOfShorterConvolutionsIsItsParts) {
  for (const int64_t taps : {1, 2, 3}) {
    for (const int64_t width : {64, 256}) expect_parts(3, width, 128, at::kFloat, taps);
  }
}

TEST_F(GpuDecode, FewRowsAddAMixerAsItsParts) {
  for (const int64_t D : {256, 1024, 2048}) {
    for (const int64_t B : {1, 5, 8, 13}) {
      if (D == 2048 && B > 8) continue;  // too wide
      SCOPED_TRACE(std::to_string(B) + " rows of " + std::to_string(D));
      const ops::FlowStep f = flow(B, D, D / 256 * (D == 256 ? 4 : 1), D == 256 ? 64 : 256, 128), parts = with_own_states(f);
      const ops::StepNorm before = norm(D);
      at::Tensor x = draw({B, D}).to(at::kBFloat16);
      ASSERT_TRUE(ops::few_rows(x)) << "refused; the kernels are for Hopper";
      const at::Tensor from = x.clone();
      torch::cuda::synchronize();
      ASSERT_TRUE(ops::add_flow_step(x, before, f));
      const auto [o, gate] = in_parts(normed(from, before).to(at::kBFloat16), parts);
      const at::Tensor gated = normed(o, f.o_norm) * at::sigmoid(gate.to(at::kDouble));
      const at::Tensor want = from.to(at::kDouble) + product(gated.flatten(1), f.o_proj);
      EXPECT_LT(relative_l2((x - from).to(at::kCPU), (want - from).to(at::kCPU)), 0.02);
      EXPECT_LT(relative_l2(x.to(at::kCPU), want.to(at::kCPU)), 4e-3);
      EXPECT_LT(relative_l2(f.k.to(at::kCPU), parts.k.to(at::kCPU)), 2e-3);
      EXPECT_LT(relative_l2(f.v.to(at::kCPU), parts.v.to(at::kCPU)), 2e-3);
    }
  }
}

TEST_F(GpuDecode, ProductsOfFewRowsAreTheirDoubles) {
  for (const auto& [D, F] : std::vector<std::pair<int64_t, int64_t>>{{32, 96}, {256, 768}, {1024, 2816}, {2048, 5632}}) {
    const ops::StepNorm before = norm(D);
    const at::Tensor gate_up = matrix(2 * F, D), down = matrix(D, F), head = matrix(D == 32 ? 100 : 4099, D);
    for (const int64_t B : {1, 2, 7, 8, 9, 16}) {
      if (D == 2048 && B > 8) continue;  // too wide
      SCOPED_TRACE(std::to_string(B) + " rows of " + std::to_string(D));
      at::Tensor x = draw({B, D}).to(at::kBFloat16);
      ASSERT_TRUE(ops::few_rows(x)) << "refused; the kernels are for Hopper";
      torch::cuda::synchronize();
      const at::Tensor logits = ops::head_step(x, before, head);
      EXPECT_LT(relative_l2(logits.to(at::kCPU), product(normed(x, before), head).to(at::kCPU)), 3e-3);
      const at::Tensor alone = x.narrow(0, B - 1, 1).contiguous(), from = x.clone();
      torch::cuda::synchronize();
      EXPECT_TRUE(same_bits(ops::head_step(alone, before, head)[0].to(at::kCPU), logits[B - 1].to(at::kCPU)));
      ASSERT_TRUE(ops::add_swiglu_step(x, before, gate_up, down));
      const std::vector<at::Tensor> wide = product(normed(from, before), gate_up).chunk(2, 1);
      const at::Tensor want = product(at::silu(wide[0]) * wide[1], down);
      EXPECT_LT(relative_l2(x.to(at::kCPU), (from + want).to(at::kCPU)), 4e-3);
      ASSERT_TRUE(ops::add_swiglu_step(alone, before, gate_up, down));
      EXPECT_TRUE(same_bits(alone[0].to(at::kCPU), x[B - 1].to(at::kCPU)));
    }
  }
}

TEST_F(GpuDecode, SomeRowsAddAMixerAsItsParts) {
  for (const int64_t D : {256, 1024}) {
    for (const int64_t B : {17, 33, 64}) {
      SCOPED_TRACE(std::to_string(B) + " rows of " + std::to_string(D));
      const ops::FlowStep f = flow(B, D, 4, D == 256 ? 64 : 256, 128), parts = with_own_states(f);
      const ops::StepNorm before = norm(D), next = norm(D);
      const at::Tensor x = draw({B, D}).to(at::kBFloat16), from = x.clone();
      ASSERT_TRUE(ops::some_rows(x)) << "refused; the kernels are for Hopper";
      torch::cuda::synchronize();
      ops::StepRows rows = ops::begin_rows(x, before);
      ASSERT_TRUE(ops::add_flow_rows(rows, f, next));
      const auto [o, gate] = in_parts(normed(from, before).to(at::kBFloat16), parts);
      const at::Tensor gated = normed(o, f.o_norm) * at::sigmoid(gate.to(at::kDouble));
      const at::Tensor want = from.to(at::kDouble) + product(gated.flatten(1), f.o_proj);
      EXPECT_LT(relative_l2((rows.x - from).to(at::kCPU), (want - from).to(at::kCPU)), 0.02);
      EXPECT_LT(relative_l2(rows.x.to(at::kCPU), want.to(at::kCPU)), 4e-3);
      EXPECT_LT(relative_l2(rows.scaled.to(at::kCPU), (rows.x * next.weight).to(at::kCPU)), 4e-3);
      EXPECT_LT(relative_l2(rows.squares.sum(0).narrow(0, 0, B).to(at::kCPU), rows.x.to(at::kDouble).square().sum(1).to(at::kCPU)), 1e-5);
      EXPECT_LT(relative_l2(f.k.to(at::kCPU), parts.k.to(at::kCPU)), 2e-3);
      EXPECT_LT(relative_l2(f.v.to(at::kCPU), parts.v.to(at::kCPU)), 2e-3);
    }
  }
}

TEST_F(GpuDecode, ProductsOfSomeRowsAreTheirDoubles) {
  for (const auto& [D, F] : std::vector<std::pair<int64_t, int64_t>>{{256, 768}, {1024, 2816}}) {
    const ops::StepNorm before = norm(D), next = norm(D);
    const at::Tensor gate_up = matrix(2 * F, D), down = matrix(D, F), all = draw({64, D}).to(at::kBFloat16);
    const auto added = [&](const at::Tensor& from) {
      torch::cuda::synchronize();
      ops::StepRows rows = ops::begin_rows(from.clone(), before);
      EXPECT_TRUE(ops::add_swiglu_rows(rows, gate_up, down, next));
      return rows.x.to(at::kCPU);
    };
    const at::Tensor together = added(all);
    for (const int64_t B : {17, 33, 64}) {
      SCOPED_TRACE(std::to_string(B) + " rows of " + std::to_string(D));
      const at::Tensor from = all.narrow(0, 64 - B, B).contiguous(), got = added(from);
      const std::vector<at::Tensor> wide = product(normed(from, before), gate_up).chunk(2, 1);
      EXPECT_LT(relative_l2(got, (from + product(at::silu(wide[0]) * wide[1], down)).to(at::kCPU)), 4e-3);
      EXPECT_TRUE(same_bits(got, together.narrow(0, 64 - B, B))) << "a row's bits depend on the batch";
    }
  }
}

TEST_F(GpuDecode, SomeRowsRefuseWhatTheyHaveNoPlaceFor) {
  const auto rows = [](int64_t B, int64_t D) { return draw({B, D}).to(at::kBFloat16); };
  EXPECT_TRUE(ops::some_rows(rows(64, 1024)));
  EXPECT_FALSE(ops::some_rows(rows(65, 1024)));
  EXPECT_FALSE(ops::some_rows(rows(64, 1000)));
  EXPECT_FALSE(ops::some_rows(rows(64, 1088))) << "wider than pays";
  EXPECT_FALSE(ops::some_rows(draw({64, 1024})));
  ops::StepRows wide = ops::begin_rows(rows(64, 2048), norm(2048));
  const at::Tensor before = wide.x.clone();
  EXPECT_FALSE(ops::add_swiglu_rows(wide, matrix(2 * 5632, 2048), matrix(2048, 5632), norm(2048))) << "more than shared memory holds";
  EXPECT_TRUE(same_bits(wide.x.to(at::kCPU), before.to(at::kCPU)));
}

// Between 17 and 64 sequences.
TEST_F(GpuDecode, ASequenceAmongSomeIsTheSequenceAmongOthers) {
  CausalLM model(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/cyfa-9m.json"));
  model.initialise(1, at::kBFloat16, at::kCUDA);
  const Weights w = model.step_weights();
  const at::Tensor ids = at::randint(0, model.config().vocab_size, {64}, at::kLong);
  ModelState of_many = model.initial_state(64), of_some = model.initial_state(20);
  for (int64_t t = 0; t < 3; ++t) {
    model.step(w, ids, of_many);
    model.step(w, ids.narrow(0, 40, 20), of_some);
  }
  for (size_t layer = 0; layer < of_some.layers.size(); ++layer) {
    for (size_t i = 0; i < of_some.layers[layer].size(); ++i) {
      EXPECT_TRUE(same_bits(of_some.layers[layer][i].to(at::kCPU), of_many.layers[layer][i].narrow(0, 40, 20).to(at::kCPU)))
          << "layer " << layer << " " << i;
    }
  }
}

TEST_F(GpuDecode, ASequenceAmongFewIsTheSequenceAlone) {
  CausalLM model(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/cyfa-9m.json"));
  model.initialise(1, at::kBFloat16, at::kCUDA);
  const Weights w = model.step_weights();
  ModelState together = model.initial_state(16), alone = model.initial_state(1);
  for (int64_t t = 0; t < 5; ++t) {
    const at::Tensor ids = at::randint(0, model.config().vocab_size, {16}, at::kLong);
    const at::Tensor all = model.step(w, ids, together).to(at::kCPU);
    EXPECT_TRUE(same_bits(model.step(w, ids.narrow(0, 14, 1), alone).to(at::kCPU)[0], all[14])) << "token " << t;
  }
}

TEST_F(GpuDecode, AReplayedStepIsTheStep) {
  CausalLM model(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/cyfa-9m.json"));
  model.initialise(1, at::kBFloat16, at::kCUDA);
  const Weights w = model.step_weights();
  for (const int64_t B : {1, 5, 11, 19, 64, 70}) {
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

// Models whose step waits for the GPU or copies from the host say so, and are stepped as they are.
TEST_F(GpuDecode, EveryMixerIsRecordedOrSaysThatItCannotBe) {
  for (const auto& config : std::filesystem::directory_iterator(std::string(CYFA_SOURCE_DIR) + "/configs/parity")) {
    SCOPED_TRACE(config.path().filename().string());
    CausalLM model(ModelConfig::read(config.path()));
    model.initialise(1, at::kBFloat16, at::kCUDA);
    const Weights w = model.step_weights();
    StepGraph graph(model, w);
    ModelState state = model.initial_state(2), plain = model.initial_state(2);
    for (int64_t t = 0; t < 4; ++t) {
      const at::Tensor ids = at::randint(0, model.config().vocab_size, {2}, at::kLong);
      const at::Tensor want = model.step(w, ids, plain).to(at::kCPU);
      EXPECT_TRUE(same_bits(graph.step(ids, state).to(at::kCPU), want)) << "token " << t;
      EXPECT_EQ(graph.recorded(), t > 0 && model.recordable());
    }
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
  for (const int64_t B : {1, 5, 11, 19, 64, 70}) {
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
