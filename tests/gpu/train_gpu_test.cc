// Tests training on a GPU in bf16: errors of the sm90 engine and of the plain model, both relative to fp32; equal runs are bitwise equal.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#ifdef CYFA_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include "cyfa/engine/sm90/train_ops.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/ops/dense/dense.h"
#include "cyfa/ops/dense/short_conv.h"
#include "cyfa/train/trainer.h"
#include "tests/gpu/fused_model.h"

namespace cyfa::test {
namespace {

class GpuTraining : public OnGpu<> {};

struct Step {
  double loss = 0;
  std::vector<at::Tensor> grads;
  int64_t kept_bytes = 0;  // between a forward and its backward
};

int64_t allocated_bytes() {
#ifdef CYFA_CUDA
  return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current;
#else
  return 0;
#endif
}

// Loss and gradients of a step with two micro-batches.
Step run(CausalLM& m, const TrainOptions& options, bool packed_sequences) {
  const auto engine = prepare_training(m, options);
  engine->begin_step(std::nullopt);
  Step out;
  for (uint64_t part = 0; part < 2; ++part) {
    const at::Tensor ids = random_ids(m, {3, 301}, part).to(at::kCUDA);
    const at::Tensor inputs = ids.narrow(1, 0, 300), targets = ids.narrow(1, 1, 300).clone();
    targets.narrow(1, 40, 60).fill_(ops::kIgnore);
    std::optional<at::Tensor> borders;
    if (packed_sequences) borders = at::tensor({0, 5, 5, 6, 270, 900}, at::kLong);
    const int64_t before = allocated_bytes();
    const at::Tensor loss = engine->loss(inputs, targets, borders) / 2;
    out.kept_bytes = allocated_bytes() - before;
    loss.backward();
    out.loss += loss.item<double>();
  }
  for (at::Tensor& p : m.parameters()) {
    out.grads.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
    p.mutable_grad().reset();
  }
  return out;
}

TEST_F(GpuTraining, FusedWeightsGiveTheSameGradients) {
  const std::vector<ModelCase> cases = {
      {"Plain", fusable_config(Json::object())},
      {"ConvBiasAndClock", fusable_config({{"conv_bias", true}, {"conv_size", 3}, {"clock_stop_gradient", false}})},
      {"ThreeHeadsWide", fusable_config({{"num_heads", 3}, {"expand_v", 2.0}, {"vocab_size", 1008}})},
      {"TiedHead", fusable_config({{"tie_word_embeddings", true}})},
      {"NoShortConv", fusable_config({{"use_short_conv", false}})},
      {"OddVocabulary", fusable_config({{"vocab_size", 997}})},
      {"Transformer",
       {{"model_type", "llama"},
        {"hidden_size", 256},
        {"num_hidden_layers", 2},
        {"num_attention_heads", 4},
        {"vocab_size", 1000},
        {"intermediate_size", 344},
        {"bos_token_id", 1},
        {"eos_token_id", 2}}}};
  for (const ModelCase& c : cases) {
    for (const bool sequences : {false, true}) {
      SCOPED_TRACE(c.name + (sequences ? ", packed sequences" : ""));
      CausalLM m = model_on_gpu(c.config);
      const Step exact = run(m, {std::nullopt, "portable"}, sequences), plain = run(m, {at::kBFloat16, "portable"}, sequences);
      const Step got = run(m, {at::kBFloat16, "sm90"}, sequences), again = run(m, {at::kBFloat16, "sm90"}, sequences);
      const Step recomputed = run(m, {at::kBFloat16, "sm90", true}, sequences);
      EXPECT_NEAR(got.loss, exact.loss, 2 * std::abs(plain.loss - exact.loss) + 2e-3 * exact.loss);
      EXPECT_EQ(got.loss, again.loss);
      for (size_t id = 0; id < got.grads.size(); ++id) {
        const std::string& name = m.table().specs()[id].name;
        ASSERT_EQ(got.grads[id].defined(), plain.grads[id].defined()) << name;
        if (!got.grads[id].defined()) continue;
        // Two different roundings: gradients with few elements differ between them by as much as the error of each.
        const double few = std::sqrt(std::max(1.0, 16.0 / static_cast<double>(got.grads[id].numel())));
        const double limit = 3 * few * distance(plain.grads[id], exact.grads[id]) + 1e-2;
        EXPECT_LT(distance(got.grads[id], exact.grads[id]), limit) << name;
        EXPECT_TRUE(at::equal(got.grads[id], again.grads[id])) << name << ": equal calls, other bits";
        EXPECT_LT(distance(recomputed.grads[id], exact.grads[id]), limit) << name << ", recomputed";
      }
    }
  }
}

// What backward computes again are the values that it would have kept.
TEST_F(GpuTraining, RowsComputedAgainHaveTheSameBits) {
  const std::vector<ModelCase> cases = {
      {"Plain", fusable_config(Json::object())},
      {"ConvBiasAndClock", fusable_config({{"conv_bias", true}, {"conv_size", 3}, {"clock_stop_gradient", false}})},
      {"NarrowHeads", fusable_config({{"num_heads", 3}, {"head_dim", 80}})},
      {"NoShortConv", fusable_config({{"use_short_conv", false}})},
  };
  for (const ModelCase& c : cases) {
    for (const bool packed : {false, true}) {
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(c.name + (packed ? ", packed sequences" : "") + (recompute ? ", layers recomputed" : ""));
        CausalLM m = model_on_gpu(c.config);
        const auto with = [&](bool rows, bool again) { return run(m, {at::kBFloat16, "sm90", recompute, rows, again}, packed); };
        const Step kept = with(false, false), again = with(true, false), mlp = with(false, true), all = with(true, true);
        EXPECT_EQ(again.loss, kept.loss);
        for (size_t id = 0; id < kept.grads.size(); ++id) {
          EXPECT_TRUE(at::equal(again.grads[id], kept.grads[id])) << m.table().specs()[id].name << ", rows";
          EXPECT_TRUE(at::equal(mlp.grads[id], kept.grads[id])) << m.table().specs()[id].name << ", MLP";
          EXPECT_TRUE(at::equal(all.grads[id], kept.grads[id])) << m.table().specs()[id].name << ", rows and MLP";
        }
        if (!recompute && c.name == "Plain") {
          EXPECT_LT(static_cast<double>(again.kept_bytes), 0.8 * static_cast<double>(kept.kept_bytes));
          EXPECT_LT(static_cast<double>(all.kept_bytes), 0.9 * static_cast<double>(again.kept_bytes));
        }
      }
    }
  }
}

// The ops in front of the operator alone, where all errors come from rounding.
TEST_F(GpuTraining, ProjectionsAreThoseOfSeparateMatrices) {
  const int64_t D = 72, H = 4, V = 24, W = 3, widths[3] = {64, 64, 96};
  const int64_t rows = 64 + 64 + 96 + V + 3 * H, filled = (rows + 7) / 8 * 8;
  const at::Tensor borders = at::tensor({0, 7, 7, 9, 300, 700}, at::kLong);
  at::manual_seed(4);
  const auto half = [](const at::Tensor& x) { return x.to(at::kBFloat16); };
  const auto accumulated = [](const at::Tensor& x) {
    return fused::Accumulated{x.to(at::kCUDA), at::ones(x.sizes(), at::kFloat).to(at::kCUDA)};
  };
  for (const auto& [stop, bias, continued] : std::vector<std::array<bool, 3>>{{0, 0, 0}, {0, 1, 1}, {1, 0, 1}, {1, 1, 0}}) {
    SCOPED_TRACE(std::string(stop ? "clock stops gradients" : "") + (bias ? ", bias" : "") + (continued ? ", rows before" : ""));
    fused::FlowWeights w;
    w.layout = {static_cast<int>(H), 16, static_cast<int>(V), static_cast<int>(V)};
    ASSERT_EQ(w.layout.used(), rows);
    const at::Tensor projection = at::randn({filled, D});
    projection.narrow(0, rows, filled - rows).zero_();
    w.projection = accumulated(half(projection));
    for (size_t i = 0; i < 3; ++i) {
      w.conv[i] = accumulated(at::randn({widths[i], 1, W}));
      if (bias) w.conv_bias[i] = accumulated(at::randn({widths[i]}));
    }
    w.gate_second = accumulated(half(at::randn({H * V, V})));
    w.gate_bias = half(at::randn({H * V})).to(at::kFloat).to(at::kCUDA);
    for (fused::Accumulated* s : {&w.dt_bias, &w.A_log, &w.b_bias, &w.d_bias}) *s = accumulated(at::randn({H}));
    w.clock_stop_gradient = stop;
    const at::Tensor x = half(at::randn({1, 700, D})).to(at::kCUDA).requires_grad_();
    at::Tensor before;
    if (continued) before = half(at::randn({1, W - 1, 64 + 64 + 96})).to(at::kCUDA).requires_grad_();
    const fused::FlowProjections got = fused::flow_projections(x, w, borders, before);

    // The same in double with unfused weights.
    std::vector<at::Tensor> leaves;
    const auto leaf = [&](const at::Tensor& t) {
      leaves.push_back(t.detach().cpu().to(at::kDouble).requires_grad_());
      return leaves.back();
    };
    const at::Tensor exact = leaf(x), matrix = leaf(w.projection.value);
    const at::Tensor y = at::matmul(exact, matrix.t()), clock = at::matmul(stop ? exact.detach() : exact, matrix.t());
    const at::Tensor exact_before = continued ? before.detach().cpu().to(at::kDouble).requires_grad_() : before;
    std::vector<at::Tensor> wanted;
    std::vector<at::Tensor> sums = {w.projection.grad};
    int64_t at = 0;
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor conv = leaf(w.conv[i].value);
      sums.push_back(w.conv[i].grad);
      std::optional<at::Tensor> shift;
      if (bias) {
        shift = leaf(w.conv_bias[i].value);
        sums.push_back(w.conv_bias[i].grad);
      }
      std::optional<at::Tensor> past;
      if (continued) {
        const at::Tensor first = exact_before.narrow(2, at, widths[i]);
        past = at::cat({first, at::zeros({borders.size(0) - 2, W - 1, widths[i]}, first.options())});
      }
      wanted.push_back(ops::short_conv(y.narrow(2, at, widths[i]), conv, shift, past, borders).y);
      at += widths[i];
    }
    const at::Tensor low = y.narrow(2, at, V), up = leaf(w.gate_second.value);
    sums.push_back(w.gate_second.grad);
    at += V;
    const at::Tensor dt_bias = leaf(w.dt_bias.value), A_log = leaf(w.A_log.value), b_bias = leaf(w.b_bias.value),
                     d_bias = leaf(w.d_bias.value);
    for (const fused::Accumulated* s : {&w.dt_bias, &w.A_log, &w.b_bias, &w.d_bias}) sums.push_back(s->grad);
    wanted.push_back(ops::decay_gate(y.narrow(2, at, H), dt_bias, A_log));
    wanted.push_back(at::sigmoid(y.narrow(2, at + H, H) + b_bias));
    wanted.push_back(at::sigmoid(clock.narrow(2, at + 2 * H, H) + d_bias));
    wanted.push_back(at::matmul(low, up.t()) + w.gate_bias.cpu().to(at::kDouble));

    const std::vector<at::Tensor> results = {got.q, got.k, got.v, got.log_alpha, got.beta, got.delta, got.gate};
    std::vector<at::Tensor> grads, wide_grads;
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_LT(distance(results[i].detach().cpu(), wanted[i].detach()), 6e-3) << "result " << i;
      // Positive for the gates, of which a parameter's gradient is a sum over all tokens: one that cancels has no relative error to speak
      // of.
      const at::Tensor grad = i >= 3 && i <= 5 ? at::rand(results[i].sizes()) : at::randn(results[i].sizes());
      grads.push_back(grad.to(at::kCUDA).to(results[i].scalar_type()));
      wide_grads.push_back(grads.back().cpu().to(at::kDouble));
    }
    torch::autograd::backward(results, grads);
    torch::autograd::backward(wanted, wide_grads);
    EXPECT_LT(distance(x.grad().cpu(), exact.grad()), 6e-3);
    if (continued) {
      EXPECT_LT(distance(before.grad().cpu(), exact_before.grad()), 6e-3);
    }
    for (size_t i = 0; i < sums.size(); ++i) {  // accumulated onto the initial ones
      EXPECT_LT(distance((sums[i] - 1).cpu(), leaves[i + 1].grad().view(sums[i].sizes())), 6e-3) << "gradient " << i;
    }
  }
}

TEST_F(GpuTraining, EqualRunsGiveEqualBits) {
  Recipe r;
  r.steps = 4;
  r.batch = 4;
  r.context = 100;
  r.warmup = 1;
  r.dtype = "bf16";
  const Training once = trained_by_heart(fusable_config(Json::object()), r), again = trained_by_heart(fusable_config(Json::object()), r);
  EXPECT_EQ(once.losses, again.losses);
  for (size_t id = 0; id < once.parameters.size(); ++id) EXPECT_TRUE(at::equal(once.parameters[id], again.parameters[id])) << id;
}

}  // namespace
}  // namespace cyfa::test
