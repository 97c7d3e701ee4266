// Tests decoding on a GPU: fused steps match unfused ones, and replayed CUDA graphs match eager steps.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#ifdef CYFA_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <filesystem>
#include <numeric>

#include "cyfa/engine/recorded.h"
#include "cyfa/engine/sm90/medium_batch.h"
#include "cyfa/engine/sm90/train_ops.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/dense/dense.h"
#include "tests/gpu/on_gpu.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class GpuDecode : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    at::manual_seed(1);
  }

  static at::Tensor draw(at::IntArrayRef shape, double scale = 1) { return at::randn(shape, at::TensorOptions(at::kCUDA)) * scale; }
  static at::Tensor matrix(int64_t rows, int64_t columns) { return draw({rows, columns}, 1 / std::sqrt(columns)).to(at::kBFloat16); }
  static fused::StepNorm norm(int64_t width) { return {1 + draw({width}, 0.1), 1e-6}; }
  static at::Tensor normed(const at::Tensor& x, const fused::StepNorm& norm) {
    const at::Tensor wide = x.to(at::kDouble);
    return wide * at::rsqrt(wide.square().mean(-1, true) + norm.eps) * norm.weight.to(at::kDouble);
  }
  static at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
    return at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t());
  }

  // A mixer with random weights and a random state.
  static fused::FlowStep flow(int64_t B, int64_t D, int64_t H, int64_t width, int64_t M, at::ScalarType state = at::kFloat,
                              int64_t taps = 4) {
    fused::FlowStep f;
    f.w.layout = {static_cast<int>(H), static_cast<int>(width), static_cast<int>(width), static_cast<int>(width)};
    f.w.projection.value = matrix(f.w.layout.columns(), D);
    for (fused::Accumulated& conv : f.w.conv) conv.value = draw({H * width, 1, taps}, 0.5);
    f.w.conv_bias[1].value = draw({H * width}, 0.5);
    f.w.gate_second.value = matrix(H * width, width);
    f.w.gate_bias = draw({H * width}).to(at::kBFloat16);
    for (fused::Accumulated* gate : {&f.w.dt_bias, &f.w.A_log, &f.w.b_bias, &f.w.d_bias}) gate->value = draw({H});
    f.readout_table = ops::cyclic_flow_readout_table(draw({H, M - 1, M - 1}, 0.2));
    f.q_norm_weight = norm(width).weight;
    f.k_norm_weight = norm(width).weight;
    f.norm_eps = 1e-6;
    f.o_norm = norm(width);
    f.o_proj = matrix(D, H * width);
    f.k = draw({B, H, width, M}, 0.3).to(state);
    f.v = draw({B, H, M, width}, 0.3).to(state);
    f.clock = draw({B, H}, 50).abs().to(at::kDouble);
    for (at::Tensor& tail : f.tails) tail = draw({B, taps - 1, H * width});
    torch::cuda::synchronize();
    return f;
  }
  static fused::FlowStep with_own_states(fused::FlowStep f) {
    for (at::Tensor* state : {&f.k, &f.v, &f.clock, &f.tails[0], &f.tails[1], &f.tails[2]}) *state = state->clone();
    torch::cuda::synchronize();
    return f;
  }
  static void expect_same_states(const fused::FlowStep& a, const fused::FlowStep& b) {
    EXPECT_TRUE(same_bits(a.k.to(at::kCPU), b.k.to(at::kCPU)));
    EXPECT_TRUE(same_bits(a.v.to(at::kCPU), b.v.to(at::kCPU)));
    EXPECT_TRUE(same_bits(a.clock.to(at::kCPU), b.clock.to(at::kCPU)));
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(a.tails[i].to(at::kCPU), b.tails[i].to(at::kCPU))) << i;
  }
  // The mixer in separate launches: the operator's output and the output gate.
  static std::pair<at::Tensor, at::Tensor> in_parts(const at::Tensor& x, const fused::FlowStep& f) {
    const int64_t B = x.size(0), H = f.readout_table.size(0), width = f.k.size(2);
    const fused::FlowProjections s = fused::flow_projections_step(x, f.w, f.tails);
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

  // Three decode steps of a mixer are bitwise the same in one launch and in separate launches.
  static void expect_parts(int64_t B, int64_t width, int64_t M, at::ScalarType state, int64_t taps) {
    SCOPED_TRACE(std::to_string(B) + " sequences, heads of " + std::to_string(width) + ", " + std::to_string(taps) + " taps");
    const fused::FlowStep f = flow(B, 256, 4, width, M, state, taps), parts = with_own_states(f);
    for (int64_t t = 0; t < 3; ++t) {
      const at::Tensor x = draw({B, 256}).to(at::kBFloat16);
      at::Tensor got;
      ASSERT_STREQ(fused::flow_step_gated(x, f, &got), nullptr);
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
      const fused::FlowStep f = flow(B, D, D / 256 * (D == 256 ? 4 : 1), D == 256 ? 64 : 256, 128), parts = with_own_states(f);
      const fused::StepNorm before = norm(D);
      at::Tensor x = draw({B, D}).to(at::kBFloat16);
      ASSERT_STREQ(fused::small_batch_refusal(x), nullptr);
      const at::Tensor from = x.clone();
      torch::cuda::synchronize();
      ASSERT_STREQ(fused::add_flow_step(x, before, f), nullptr);
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
    const fused::StepNorm before = norm(D);
    const at::Tensor gate_and_up = matrix(2 * F, D), down = matrix(D, F), head = matrix(D == 32 ? 100 : 4099, D);
    for (const int64_t B : {1, 2, 7, 8, 9, 16}) {
      if (D == 2048 && B > 8) continue;  // too wide
      SCOPED_TRACE(std::to_string(B) + " rows of " + std::to_string(D));
      at::Tensor x = draw({B, D}).to(at::kBFloat16);
      ASSERT_STREQ(fused::small_batch_refusal(x), nullptr);
      torch::cuda::synchronize();
      at::Tensor logits, logits_alone;
      ASSERT_STREQ(fused::head_step(x, before, head, &logits), nullptr);
      EXPECT_LT(relative_l2(logits.to(at::kCPU), product(normed(x, before), head).to(at::kCPU)), 3e-3);
      const at::Tensor alone = x.narrow(0, B - 1, 1).contiguous(), from = x.clone();
      torch::cuda::synchronize();
      ASSERT_STREQ(fused::head_step(alone, before, head, &logits_alone), nullptr);
      EXPECT_TRUE(same_bits(logits_alone[0].to(at::kCPU), logits[B - 1].to(at::kCPU)));
      ASSERT_STREQ(fused::add_swiglu_step(x, before, gate_and_up, down), nullptr);
      const std::vector<at::Tensor> wide = product(normed(from, before), gate_and_up).chunk(2, 1);
      const at::Tensor want = product(at::silu(wide[0]) * wide[1], down);
      EXPECT_LT(relative_l2(x.to(at::kCPU), (from + want).to(at::kCPU)), 4e-3);
      ASSERT_STREQ(fused::add_swiglu_step(alone, before, gate_and_up, down), nullptr);
      EXPECT_TRUE(same_bits(alone[0].to(at::kCPU), x[B - 1].to(at::kCPU)));
    }
  }
}

TEST_F(GpuDecode, SomeRowsAddAMixerAsItsParts) {
  for (const int64_t D : {256, 1024}) {
    for (const int64_t B : {17, 33, 64}) {
      SCOPED_TRACE(std::to_string(B) + " rows of " + std::to_string(D));
      const fused::FlowStep f = flow(B, D, 4, D == 256 ? 64 : 256, 128), parts = with_own_states(f);
      const fused::StepNorm before = norm(D), next = norm(D);
      const at::Tensor x = draw({B, D}).to(at::kBFloat16), from = x.clone();
      ASSERT_STREQ(fused::medium_batch_refusal(x), nullptr);
      torch::cuda::synchronize();
      fused::NormedRows rows = fused::begin_rows(x, before);
      ASSERT_STREQ(fused::add_flow_rows(rows, f, next), nullptr);
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
    const fused::StepNorm before = norm(D), next = norm(D);
    const at::Tensor gate_and_up = matrix(2 * F, D), down = matrix(D, F), all = draw({64, D}).to(at::kBFloat16);
    const auto added = [&](const at::Tensor& from) {
      torch::cuda::synchronize();
      fused::NormedRows rows = fused::begin_rows(from.clone(), before);
      EXPECT_STREQ(fused::add_swiglu_rows(rows, gate_and_up, down, next), nullptr);
      return rows.x.to(at::kCPU);
    };
    const at::Tensor together = added(all);
    for (const int64_t B : {17, 33, 64}) {
      SCOPED_TRACE(std::to_string(B) + " rows of " + std::to_string(D));
      const at::Tensor from = all.narrow(0, 64 - B, B).contiguous(), got = added(from);
      const std::vector<at::Tensor> wide = product(normed(from, before), gate_and_up).chunk(2, 1);
      EXPECT_LT(relative_l2(got, (from + product(at::silu(wide[0]) * wide[1], down)).to(at::kCPU)), 4e-3);
      EXPECT_TRUE(same_bits(got, together.narrow(0, 64 - B, B))) << "a row's bits depend on the batch";
    }
  }
}

TEST_F(GpuDecode, SomeRowsRefuseWhatTheyHaveNoPlaceFor) {
  const auto rows = [](int64_t B, int64_t D) { return draw({B, D}).to(at::kBFloat16); };
  EXPECT_STREQ(fused::medium_batch_refusal(rows(64, 1024)), nullptr);
  EXPECT_NE(fused::medium_batch_refusal(rows(65, 1024)), nullptr);
  EXPECT_NE(fused::medium_batch_refusal(rows(64, 1000)), nullptr);
  EXPECT_NE(fused::medium_batch_refusal(rows(64, 1088)), nullptr) << "wider than pays";
  EXPECT_NE(fused::medium_batch_refusal(draw({64, 1024})), nullptr);
  fused::NormedRows wide = fused::begin_rows(rows(64, 2048), norm(2048));
  const at::Tensor before = wide.x.clone();
  EXPECT_NE(fused::add_swiglu_rows(wide, matrix(2 * 5632, 2048), matrix(2048, 5632), norm(2048)), nullptr)
      << "more than shared memory holds";
  EXPECT_TRUE(same_bits(wide.x.to(at::kCPU), before.to(at::kCPU)));
}

CausalLM small_cyfa(at::ScalarType type = at::kBFloat16) {
  CausalLM model(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/cyfa-9m.json"));
  model.initialise(1, type, at::kCUDA);
  return model;
}

void expect_same_model_states(const ModelState& a, const ModelState& b) {
  for (size_t layer = 0; layer < a.layers.size(); ++layer) {
    for (size_t i = 0; i < a.layers[layer].size(); ++i) {
      EXPECT_TRUE(same_bits(a.layers[layer][i].to(at::kCPU), b.layers[layer][i].to(at::kCPU))) << "layer " << layer << " " << i;
    }
  }
}

// Batches of 17 to 64 sequences.
TEST_F(GpuDecode, ASequenceAmongSomeIsTheSequenceAmongOthers) {
  CausalLM model = small_cyfa();
  const auto engine = prepare_steps(model, {.engine = "sm90", .record = false});
  const at::Tensor ids = at::randint(0, model.config().vocab_size, {64}, at::kLong);
  ModelState of_many = model.initial_state(64), of_some = model.initial_state(20);
  for (int64_t t = 0; t < 3; ++t) {
    engine->step(ids, of_many);
    engine->step(ids.narrow(0, 40, 20), of_some);
  }
  std::vector<int64_t> rows(20);
  std::iota(rows.begin(), rows.end(), 40);
  expect_same_model_states(of_some, of_many.select(rows));
  EXPECT_TRUE(engine->notes().empty());
}

TEST_F(GpuDecode, ASequenceAmongFewIsTheSequenceAlone) {
  CausalLM model = small_cyfa();
  const auto engine = prepare_steps(model, {.engine = "sm90", .record = false, .whole_step = WholeStepUse::kOff});
  ModelState together = model.initial_state(16), alone = model.initial_state(1);
  for (int64_t t = 0; t < 5; ++t) {
    const at::Tensor ids = at::randint(0, model.config().vocab_size, {16}, at::kLong);
    const at::Tensor all = engine->step(ids, together).to(at::kCPU);
    EXPECT_TRUE(same_bits(engine->step(ids.narrow(0, 14, 1), alone).to(at::kCPU)[0], all[14])) << "token " << t;
  }
  EXPECT_TRUE(engine->notes().empty());
}

TEST_F(GpuDecode, AReplayedStepIsTheStep) {
  CausalLM model = small_cyfa();
  const std::shared_ptr<StepEngine> engine = prepare_steps(model, {.engine = "sm90", .record = false});
  for (const int64_t B : {1, 5, 11, 19, 64, 70}) {
    const auto recorded = record_steps(engine);
    EXPECT_EQ(recorded->name(), "sm90+graph");
    ModelState replayed = model.initial_state(B), plain = model.initial_state(B);
    for (int64_t t = 0; t < 6; ++t) {
      const at::Tensor ids = at::randint(0, model.config().vocab_size, {B}, at::kLong);
      const at::Tensor want = engine->step(ids, plain).to(at::kCPU);
      EXPECT_TRUE(same_bits(recorded->step(ids, replayed).to(at::kCPU), want)) << "token " << t;
    }
    expect_same_model_states(replayed, plain);
    EXPECT_THROW(recorded->step(at::zeros({B + 1}, at::kLong), replayed), ops::ArgumentError);
    EXPECT_THROW(recorded->step(at::full({B}, model.config().vocab_size, at::kLong), replayed), ops::ArgumentError);
    expect_same_model_states(replayed, plain);
    ModelState other = model.initial_state(B), again = model.initial_state(B);  // a new state starts over
    for (int64_t t = 0; t < 3; ++t) {
      const at::Tensor ids = at::randint(0, model.config().vocab_size, {B}, at::kLong);
      const at::Tensor want = engine->step(ids, again).to(at::kCPU);
      EXPECT_TRUE(same_bits(recorded->step(ids, other).to(at::kCPU), want));
    }
    const at::Tensor own = at::zeros({B}, at::TensorOptions(at::kLong).device(at::kCUDA));  // read in place by the graph
    for (int64_t t = 0; t < 6; ++t) {
      const at::Tensor ids = at::randint(0, model.config().vocab_size, {B}, at::kLong);
      const at::Tensor want = engine->step(ids, again).to(at::kCPU);
      own.copy_(ids);
      const at::Tensor given = t == 2 ? ids : t == 4 ? own.clone() : own;  // from the host, and in another tensor
      EXPECT_TRUE(same_bits(recorded->step(given, other).to(at::kCPU), want)) << "token " << t << " from the device";
    }
    EXPECT_EQ(recorded->name(), "sm90+graph") << "a recording was given up";
  }
}

// Models whose step needs the host give a reason and are not captured; all others are captured with every engine.
TEST_F(GpuDecode, EveryMixerIsRecordedOrSaysThatItCannotBe) {
  for (const auto& config : std::filesystem::directory_iterator(std::string(CYFA_SOURCE_DIR) + "/configs/parity")) {
    SCOPED_TRACE(config.path().filename().string());
    CausalLM model(ModelConfig::read(config.path()));
    model.initialise(1, at::kBFloat16, at::kCUDA);
    for (const EngineOffer& offer : step_engines(model)) {
      if (!offer.refusal.empty()) continue;
      const auto engine = prepare_steps(model, {.engine = offer.name}),
                 plain = prepare_steps(model, {.engine = offer.name, .record = false});
      EXPECT_EQ(engine->name(), offer.name + (recording_refusal(model).empty() ? "+graph" : ""));
      ModelState state = model.initial_state(2), of_plain = model.initial_state(2);
      for (int64_t t = 0; t < 4; ++t) {
        const at::Tensor ids = at::randint(0, model.config().vocab_size, {2}, at::kLong);
        const at::Tensor want = plain->step(ids, of_plain).to(at::kCPU);
        EXPECT_TRUE(same_bits(engine->step(ids, state).to(at::kCPU), want)) << offer.name << ", token " << t;
      }
      for (const std::string& note : engine->notes()) EXPECT_EQ(note.find("could not be recorded"), std::string::npos) << note;
    }
  }
}

// A fused bf16 step rounds differently from the plain one; both are compared with fp32.
TEST_F(GpuDecode, AFusedStepIsAsGoodAsTheStep) {
  CausalLM narrow = small_cyfa(), wide = small_cyfa(at::kFloat);
  for (size_t id = 0; id < wide.parameters().size(); ++id) wide.parameters()[id].copy_(narrow.parameters()[id]);
  const auto plain = prepare_steps(narrow, {.engine = "portable", .record = false}), fused = prepare_steps(narrow, {.engine = "sm90"}),
             exact = prepare_steps(wide, {.engine = "portable", .record = false});
  for (const int64_t B : {1, 5, 11, 19, 64, 70}) {
    ModelState of_fused = narrow.initial_state(B), of_plain = narrow.initial_state(B), of_exact = wide.initial_state(B);
    for (int64_t t = 0; t < 20; ++t) {
      const at::Tensor ids = at::randint(0, narrow.config().vocab_size, {B}, at::kLong);
      const at::Tensor want = exact->step(ids, of_exact);
      const double error = relative_l2(fused->step(ids, of_fused).to(at::kCPU), want.to(at::kCPU));
      const double of_others = relative_l2(plain->step(ids, of_plain).to(at::kCPU), want.to(at::kCPU));
      EXPECT_LT(error, 1.5 * of_others + 2e-3) << "token " << t << ", batch " << B;
    }
  }
}

#ifdef CYFA_CUDA
// Memory holds only one copy of the weights: the parameters are views of the fused matrices.
TEST_F(GpuDecode, FusedWeightsReplaceTheParameters) {
  CausalLM model = small_cyfa();
  int64_t bytes = 0;
  for (const at::Tensor& p : model.parameters()) bytes += static_cast<int64_t>(p.nbytes());
  const auto allocated = [] { return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current; };
  const int64_t before = allocated();
  const auto engine = prepare_steps(model, {.engine = "sm90"});
  EXPECT_LT(allocated() - before, bytes / 10) << "of " << bytes << " bytes of weights";
}
#endif

}  // namespace
}  // namespace cyfa::test
