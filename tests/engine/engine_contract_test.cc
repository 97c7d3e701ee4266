// Tests that hold for every engine and model: an engine computes the same as the plain model, or refuses with a reason. Runs on the CPU by
// default; with CYFA_TEST_DEVICE=cuda on a GPU in bf16, where limits are relative to the plain model's own error.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "cyfa/engine/engine.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

at::Device test_device() {
  const char* name = std::getenv("CYFA_TEST_DEVICE");
  return at::Device(name == nullptr ? "cpu" : name);
}
bool on_gpu() { return test_device().is_cuda(); }

CausalLM on_device(const Json& config, at::ScalarType dtype) {
  CausalLM m = small_model(config);
  for (at::Tensor& p : m.parameters()) p = p.to(test_device(), dtype);
  return m;
}

CausalLM exact_copy(const CausalLM& m) {
  CausalLM wide(m.config());
  for (size_t id = 0; id < m.parameters().size(); ++id) wide.parameters()[id] = m.parameters()[id].detach().to(at::kCPU, at::kDouble);
  return wide;
}

// Error relative to the exact norm, or to `least` if the norm is smaller: some gradients are zero.
double distance(const at::Tensor& got, const at::Tensor& exact, double least = 1e-12) {
  const at::Tensor a = got.detach().to(at::kCPU, at::kDouble), b = exact.detach().to(at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(least)).item<double>();
}

std::vector<std::string> serving(const std::vector<EngineOffer>& offers) {
  std::vector<std::string> names;
  for (const EngineOffer& offer : offers) {
    if (offer.refusal.empty()) names.push_back(offer.name);
  }
  return names;
}

class EngineContract : public testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    if (on_gpu() && !torch::cuda::is_available()) GTEST_SKIP() << "CYFA_TEST_DEVICE is cuda, but there is no CUDA device";
  }
  static at::ScalarType dtype() { return on_gpu() ? at::kBFloat16 : at::kFloat; }
  // The limit of an error, given that of the plain model in the same type.
  static double limit(double of_portable) { return on_gpu() ? 2 * of_portable + 5e-3 : 5e-5; }
};

TEST_P(EngineContract, StepsAreForward) {
  const at::NoGradGuard no_grad;
  CausalLM m = on_device(GetParam().config, dtype());
  const CausalLM exact = exact_copy(m);
  for (const int64_t B : {1, 3, 20, 70}) {
    const at::Tensor ids = random_ids(m, {B, 7});
    const Weights wide = exact.weights();
    const at::Tensor want = exact.head(wide, exact.forward(wide, ids).hidden);
    // The plain model rounds in two ways, both of them right: a step adds the biases of gates in their product, a forward after it. An
    // engine may do either, so the larger error of the two is its measure: a token's logits may happen to be near with one of them.
    const at::Tensor plain = m.head(m.weights(), m.forward(m.weights(), ids).hidden);
    std::vector<double> of_plain;
    for (int64_t t = 0; t < ids.size(1); ++t) of_plain.push_back(distance(plain.select(1, t), want.select(1, t)));
    std::vector<std::string> names = serving(step_engines(m));
    std::reverse(names.begin(), names.end());  // portable first
    for (const std::string& name : names) {
      const auto engine = prepare_steps(m, {.engine = name});
      EXPECT_TRUE(engine->name().starts_with(name));
      EXPECT_FALSE(engine->path(B).empty());
      ModelState state = m.initial_state(B);
      for (int64_t t = 0; t < ids.size(1); ++t) {
        const double error = distance(engine->step(ids.select(1, t), state), want.select(1, t));
        double& measure = of_plain[static_cast<size_t>(t)];
        if (name == "portable") measure = std::max(measure, error);
        EXPECT_LT(error, limit(measure)) << name << ", batch " << B << ", token " << t;
      }
      for (const std::string& note : engine->notes()) EXPECT_NE(note.find(": "), std::string::npos) << note;
    }
  }
}

TEST_P(EngineContract, AStateOfForwardGoesOnInSteps) {
  const at::NoGradGuard no_grad;
  CausalLM m = on_device(GetParam().config, dtype());
  const CausalLM exact = exact_copy(m);
  const at::Tensor ids = random_ids(m, {2, 40});
  const Weights wide = exact.weights();
  const at::Tensor want = exact.head(wide, exact.forward(wide, ids).hidden).select(1, 39);
  double of_portable = 0;
  std::vector<std::string> names = serving(step_engines(m));
  std::reverse(names.begin(), names.end());
  for (const std::string& name : names) {
    const auto engine = prepare_steps(m, {.engine = name});
    ModelState state = m.forward(engine->weights(), ids.narrow(1, 0, 38)).final_state;
    engine->step(ids.select(1, 38), state);
    const double error = distance(engine->step(ids.select(1, 39), state), want);
    if (name == "portable") of_portable = error;
    EXPECT_LT(error, limit(of_portable)) << name;
  }
}

// Whole sequences: a plain batch, packed sequences, and one prompt of several lengths, read at once and in two parts. A GPU records the
// second forward of a length and replays it from then on.
TEST_P(EngineContract, ForwardIsThePlainModels) {
  const at::NoGradGuard no_grad;
  CausalLM m = on_device(GetParam().config, dtype());
  const CausalLM exact = exact_copy(m);
  const Weights wide = exact.weights();
  struct Read {
    at::Tensor ids;
    std::optional<at::Tensor> borders;
    int64_t cut = 0;  // tokens of the first part
  };
  std::vector<Read> reads = {{random_ids(m, {3, 37}), {}}, {random_ids(m, {1, 90}), at::tensor({0, 2, 2, 70, 90}, at::kLong)}};
  for (const auto& [T, cut] : {std::pair<int64_t, int64_t>{1, 0}, {2, 1}, {130, 0}, {131, 128}, {131, 2}}) {
    for (int again = 0; again < (on_gpu() ? 3 : 1); ++again) reads.push_back({random_ids(m, {1, T}), {}, cut});
  }
  std::vector<std::string> names = serving(step_engines(m));
  std::reverse(names.begin(), names.end());  // portable first
  std::vector<double> of_portable;
  for (const std::string& name : names) {
    const auto engine = prepare_steps(m, {.engine = name});
    for (size_t i = 0; i < reads.size(); ++i) {
      const auto& [ids, borders, cut] = reads[i];
      ModelState before;
      if (cut > 0) before = engine->forward(ids.narrow(1, 0, cut)).final_state;
      LmOutput out = engine->forward(ids.narrow(1, cut, ids.size(1) - cut), borders, cut > 0 ? &before : nullptr);
      const LmOutput want = exact.forward(wide, ids, borders);
      double error = distance(out.hidden, want.hidden.narrow(1, cut, ids.size(1) - cut));
      // The final states, by the token that follows: the plain model's by a forward and a step (see StepsAreForward), others' by a step.
      const at::Tensor next = at::full({out.final_state.sequences(), 1}, 7, at::kLong);
      const at::Tensor after = exact.head(wide, exact.forward(wide, next, std::nullopt, &want.final_state).hidden).select(1, 0);
      if (name == "portable") {
        const at::Tensor hidden = engine->forward(next, std::nullopt, &out.final_state).hidden;
        error = std::max(error, distance(m.head(engine->weights(), hidden).select(1, 0), after));
      }
      error = std::max(error, distance(engine->step(next.select(1, 0), out.final_state), after));
      if (name == "portable") of_portable.push_back(error);
      EXPECT_LT(error, limit(of_portable[i])) << name << ", read " << i;
    }
  }
}

// A step engine preserves the values of the parameters, and equal runs give bitwise equal results.
TEST_P(EngineContract, ParametersStayAndEqualRunsGiveEqualBits) {
  const at::NoGradGuard no_grad;
  CausalLM m = on_device(GetParam().config, dtype());
  std::vector<at::Tensor> before;
  for (const at::Tensor& p : m.parameters()) before.push_back(p.clone());
  const at::Tensor ids = random_ids(m, {5, 4});
  for (const std::string& name : serving(step_engines(m))) {
    std::vector<at::Tensor> logits;
    for (int run = 0; run < 2; ++run) {
      const auto engine = prepare_steps(m, {.engine = name});
      ModelState state = m.initial_state(5);
      at::Tensor last;
      for (int64_t t = 0; t < 4; ++t) last = engine->step(ids.select(1, t), state);
      logits.push_back(last.clone());
    }
    EXPECT_TRUE(at::equal(logits[0], logits[1])) << name;
    for (size_t id = 0; id < before.size(); ++id) EXPECT_TRUE(at::equal(m.parameters()[id], before[id])) << name;
  }
}

// How far each gradient of an fp64 model moves if its parameters are rounded as fp32 numbers are: the largest of four draws. It is 1e-5 for
// CyclicFlow, and 2e-4 to 7e-4 for CyclicFlowWide. A computation in fp32 cannot be expected to come much nearer, since it rounds much more
// than the parameters.
std::vector<double> moved_by_rounding(const CausalLM& m, const CausalLM& exact, const std::function<at::Tensor(CausalLM&)>& loss) {
  std::vector<double> moved(exact.parameters().size(), 0);
  for (uint64_t draw = 0; draw < 4; ++draw) {
    CausalLM near = exact_copy(m);
    torch::manual_seed(draw);
    for (at::Tensor& p : near.parameters()) {
      p.mul_(1 + 6e-8 * (2 * at::rand_like(p) - 1));
      p.requires_grad_();
    }
    loss(near).backward();
    for (size_t id = 0; id < moved.size(); ++id) {
      moved[id] = std::max(moved[id], distance(near.parameters()[id].grad(), exact.parameters()[id].grad(), 1e-3));
    }
  }
  return moved;
}

TEST_P(EngineContract, TrainingIsThePlainModels) {
  Json config = GetParam().config;
  CausalLM m = on_device(config, at::kFloat);
  for (at::Tensor& p : m.parameters()) p.requires_grad_();
  CausalLM exact = exact_copy(m);
  for (at::Tensor& p : exact.parameters()) p.requires_grad_();
  const at::Tensor ids = random_ids(m, {2, 61}), targets = ids.narrow(1, 1, 60).clone();
  targets.narrow(1, 10, 5).fill_(ops::kIgnore);
  const std::optional<at::ScalarType> compute = on_gpu() ? std::optional(at::kBFloat16) : std::nullopt;
  for (const bool packed : {false, true}) {
    const std::optional<at::Tensor> borders = packed ? std::optional(at::tensor({0, 7, 7, 8, 120}, at::kLong)) : std::nullopt;
    for (at::Tensor& p : exact.parameters()) p.mutable_grad().reset();
    const auto loss_of = [&](CausalLM& model) { return model.loss(model.weights(), ids.narrow(1, 0, 60), targets, borders); };
    const at::Tensor want = loss_of(exact);
    want.backward();
    const std::vector<double> moved = on_gpu() ? std::vector<double>() : moved_by_rounding(m, exact, loss_of);
    std::vector<std::string> names = serving(train_engines(m, compute));
    std::reverse(names.begin(), names.end());
    std::vector<double> of_portable(m.parameters().size(), 0);
    double loss_of_portable = 0;
    for (const std::string& name : names) {
      for (const bool recompute : {false, true}) {
        for (at::Tensor& p : m.parameters()) p.mutable_grad().reset();
        const auto engine = prepare_training(m, {compute, name, recompute});
        EXPECT_EQ(engine->name(), name);
        engine->begin_step(std::nullopt);
        const at::Tensor loss = engine->loss(ids.narrow(1, 0, 60).to(test_device()), targets.to(test_device()), borders);
        loss.backward();
        const double error = std::abs(loss.item<double>() - want.item<double>()) / want.item<double>();
        if (name == "portable" && !recompute) loss_of_portable = error;
        EXPECT_LT(error, limit(loss_of_portable)) << name;
        for (size_t id = 0; id < m.parameters().size(); ++id) {
          const at::Tensor grad = m.parameters()[id].grad();
          const std::string& parameter = m.table().specs()[id].name;
          ASSERT_TRUE(grad.defined()) << parameter;
          const double of_grad = distance(grad, exact.parameters()[id].grad(), 1e-3);
          if (name == "portable" && !recompute) of_portable[id] = of_grad;
          // Two different roundings differ by as much as the error of each, and gradients with few elements by more.
          const double few = std::sqrt(std::max(1.0, 16.0 / static_cast<double>(grad.numel())));
          const double most = on_gpu() ? 3 * few * of_portable[id] + 0.02 : std::min(5e-4 * few + 4 * moved[id], 5e-3);
          EXPECT_LT(of_grad, most) << name << " " << parameter;
        }
      }
    }
  }
}

// On several ranks the matrices of a model may be bf16 (cyfa/train): a step is that of the same values in fp32, to the bit.
TEST_P(EngineContract, MatricesInBf16TrainAsTheirValuesInFp32) {
  CausalLM wide = on_device(GetParam().config, at::kFloat), narrow = wide;
  for (size_t id = 0; id < wide.parameters().size(); ++id) {
    at::Tensor &p = wide.parameters()[id], &q = narrow.parameters()[id];
    q = wide.table().specs()[id].role == Role::kMatrix ? p.to(at::kBFloat16) : p.clone();
    p = q.to(at::kFloat, false, true).requires_grad_();
    q.requires_grad_();
  }
  const at::Tensor ids = random_ids(wide, {2, 41}).to(test_device());
  const auto step = [&](CausalLM& m, const std::string& name) {
    const auto engine = prepare_training(m, {at::kBFloat16, name, false});
    engine->begin_step(std::nullopt);
    const at::Tensor loss = engine->loss(ids.narrow(1, 0, 40), ids.narrow(1, 1, 40), std::nullopt);
    loss.backward();
    return loss.item<double>();
  };
  EXPECT_EQ(serving(train_engines(narrow, at::kBFloat16)), serving(train_engines(wide, at::kBFloat16)));
  for (const std::string& name : serving(train_engines(narrow, at::kBFloat16))) {
    for (CausalLM* m : {&wide, &narrow}) {
      for (at::Tensor& p : m->parameters()) p.mutable_grad().reset();
    }
    EXPECT_EQ(step(narrow, name), step(wide, name)) << name;
    for (size_t id = 0; id < wide.parameters().size(); ++id) {
      const at::Tensor &p = wide.parameters()[id], &q = narrow.parameters()[id];
      const std::string& parameter = wide.table().specs()[id].name;
      EXPECT_TRUE(at::equal(q.detach().to(at::kFloat), p.detach())) << name << " " << parameter;
      ASSERT_EQ(q.grad().defined(), p.grad().defined()) << name << " " << parameter;
      EXPECT_TRUE(!p.grad().defined() || at::equal(q.grad().to(at::kFloat), p.grad())) << name << " " << parameter;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineContract, testing::ValuesIn(model_cases()), [](const auto& model) { return model.param.name; });

TEST(Engine, RefusalsHaveReasons) {
  CausalLM m = small_model(small_config());
  const std::vector<EngineOffer> offers = step_engines(m);
  ASSERT_EQ(offers.back().name, "portable");
  EXPECT_TRUE(offers.back().refusal.empty());
  EXPECT_EQ(engine_names().front(), "auto");
  EXPECT_EQ(engine_names().size(), offers.size() + 1);
  for (const EngineOffer& offer : offers) {  // the model is on the CPU
    if (offer.name == "portable") continue;
    EXPECT_FALSE(offer.refusal.empty());
    try {
      prepare_steps(m, {.engine = offer.name});
      ADD_FAILURE() << offer.name << " does not refuse";
    } catch (const std::invalid_argument& e) {
      EXPECT_NE(std::string(e.what()).find(offer.refusal), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(prepare_training(m, {.engine = "portable", .recompute_rows = true}), std::invalid_argument);
  EXPECT_THROW(prepare_training(m, {.engine = "portable", .recompute_mlp = true}), std::invalid_argument);
  try {
    prepare_training(m, {.engine = "sm120"});
    ADD_FAILURE() << "an engine that is not there";
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string(e.what()).find("auto, sm90, portable"), std::string::npos) << e.what();
  }
  EXPECT_NE(recording_refusal(m), "");
}

TEST(Engine, BadInputIsRefusedAndChangesNothing) {
  CausalLM m = small_model(small_config());
  const auto engine = prepare_steps(m);
  ModelState state = m.initial_state(2);
  engine->step(at::tensor({3, 4}, at::kLong), state);
  const ModelState before = state.clone();
  EXPECT_THROW(engine->step(at::tensor({3}, at::kLong), state), ops::ArgumentError);
  EXPECT_THROW(engine->step(at::tensor({3, 61}, at::kLong), state), ops::ArgumentError);
  EXPECT_THROW(engine->step(at::tensor({3, -1}, at::kLong), state), ops::ArgumentError);
  ModelState other = small_model(small_config(3)).initial_state(2);
  EXPECT_THROW(engine->step(at::tensor({3, 4}, at::kLong), other), ops::ArgumentError);
  for (size_t layer = 0; layer < state.layers.size(); ++layer) {
    for (size_t i = 0; i < state.layers[layer].size(); ++i) EXPECT_TRUE(at::equal(state.layers[layer][i], before.layers[layer][i]));
  }
}

}  // namespace
}  // namespace cyfa::test
