// Gradient probes against definitions: a token loop whose three clocks are separate leaves, one token's gradient at a time, and models
// whose increments are constants to autograd. Everything in double.
#include "cyfa/analysis/gradients.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numbers>

#include "cyfa/ops/dense/cross_entropy.h"
#include "tests/model/small_model.h"

namespace cyfa::analysis {
namespace {

CausalLM double_model(const Json& keys = Json::object()) {
  Json config = test::small_config();
  config.update(keys);
  return test::small_model(config, 3, at::kDouble);
}

double norm_of(const at::Tensor& x) { return x.defined() ? x.norm().item<double>() : 0; }

at::Tensor uniform(at::IntArrayRef sizes, double low, double high) { return at::rand(sizes, at::kDouble) * (high - low) + low; }

// Inputs of the operator: B2 T9 H2, K3 V4, m = 5, with norms.
ops::CyclicFlowInputs some_inputs() {
  at::manual_seed(1);
  const int64_t B = 2, T = 9, H = 2, K = 3, V = 4, m = 5;
  ops::CyclicFlowInputs in;
  in.q = at::randn({B, T, H, K}, at::kDouble);
  in.k = at::randn({B, T, H, K}, at::kDouble);
  in.v = at::randn({B, T, H, V}, at::kDouble);
  in.log_alpha = uniform({B, T, H}, -0.5, 0);
  in.delta = uniform({B, T, H}, 0, 1);
  in.beta = uniform({B, T, H}, 0, 1);
  in.readout = at::eye(m, at::kDouble) + 0.3 * at::randn({H, m, m}, at::kDouble);
  in.q_norm_weight = uniform({K}, 0.5, 1.5);
  in.k_norm_weight = uniform({K}, 0.5, 1.5);
  return in;
}

// P(age) e_0 by the Dirichlet kernel: [m] of age [].
at::Tensor write_profile(const at::Tensor& age, int64_t m) {
  at::Tensor sum = at::ones({m}, at::kDouble);
  for (int64_t j = 1; 2 * j < m; ++j)
    sum = sum + 2 * at::cos((age - at::arange(m, at::kDouble)) * (2 * std::numbers::pi * static_cast<double>(j) / static_cast<double>(m)));
  return sum / static_cast<double>(m);
}

// The operator by its definition in slots, token by token and write by write: age of write i at token t is read_t - key_i in the key state
// and read_t - value_i in the value state, of three clocks [B, T, H] that are the same in the operator.
at::Tensor token_loop(const ops::CyclicFlowInputs& in, const at::Tensor& key, const at::Tensor& value, const at::Tensor& read) {
  const auto normed = [&](const at::Tensor& x, const at::Tensor& weight) {
    return x / (x.square().mean() + ops::CyclicFlowOptions{}.norm_eps).sqrt() * weight;
  };
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2), m = in.readout.size(1);
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t h = 0; h < H; ++h) {
        at::Tensor keys = at::zeros({m, in.q.size(3)}, at::kDouble), values = at::zeros({m, in.v.size(3)}, at::kDouble);
        for (int64_t i = 0; i <= t; ++i) {
          const at::Tensor strength = in.beta[b][i][h] * in.log_alpha[b].slice(0, i + 1, t + 1).select(1, h).sum().exp();
          keys = keys + strength * at::outer(write_profile(read[b][t][h] - key[b][i][h], m), normed(in.k[b][i][h], *in.k_norm_weight));
          values = values + strength * at::outer(write_profile(read[b][t][h] - value[b][i][h], m), in.v[b][i][h]);
        }
        const at::Tensor q = normed(in.q[b][t][h], *in.q_norm_weight) / std::sqrt(static_cast<double>(in.q.size(3)));
        const at::Tensor p = at::softmax(at::mv(in.readout[h], at::mv(keys, q)), 0);
        rows.push_back(at::mv(values.t(), at::mv(in.readout[h].t(), p)));
      }
    }
  }
  return at::stack(rows).view({B, T, H, in.v.size(3)});
}

TEST(ClockPaths, EqualThoseOfATokenLoopWithThreeClocks) {
  const ops::CyclicFlowInputs in = some_inputs();
  const at::Tensor upstream = at::randn(in.v.sizes(), at::kDouble);
  const ClockPaths paths = clock_paths(in, {}, upstream);

  const at::Tensor clock = in.delta.cumsum(1);
  const auto leaf = [&] { return clock.clone().requires_grad_(true); };
  const at::Tensor key = leaf(), value = leaf(), read = leaf();
  const at::Tensor o = token_loop(in, key, value, read);
  EXPECT_TRUE(at::allclose(o, ops::cyclic_flow(in).o, 1e-10, 1e-12));
  const auto wanted = torch::autograd::grad({o}, {key, value, read}, {upstream});
  const at::Tensor found[] = {paths.key, paths.value, paths.readout};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::allclose(found[i], wanted[i], 1e-9, 1e-11)) << i;
    EXPECT_GT(norm_of(wanted[i]), 0.01) << i;
  }

  // One path by finite differences: only the clock of the value state's writes moves.
  const double step = 1e-5;
  const auto moved = [&](double by) {
    at::Tensor other = clock.clone();
    other[1][3][0].add_(by);
    return (token_loop(in, clock, other, clock) * upstream).sum().item<double>();
  };
  EXPECT_NEAR((moved(step) - moved(-step)) / (2 * step), paths.value[1][3][0].item<double>(), 1e-8);
}

TEST(ClockPaths, AddUpToTheOperatorsGradientAndToNothingOverAllTokens) {
  ops::CyclicFlowInputs in = some_inputs();
  const at::Tensor upstream = at::randn(in.v.sizes(), at::kDouble);
  const ClockPaths paths = clock_paths(in, {}, upstream);
  const at::Tensor sum = paths.key + paths.value + paths.readout;
  in.delta.requires_grad_(true);
  const at::Tensor increments = torch::autograd::grad({ops::cyclic_flow(in).o}, {in.delta}, {upstream})[0];
  EXPECT_TRUE(at::allclose(sum.flip(1).cumsum(1).flip(1), increments, 1e-9, 1e-11));
  // The clock's origin is arbitrary (Proposition 6), so the whole gradient of all of a sequence's clocks is zero; that of one path is not.
  EXPECT_LT(norm_of(sum.sum(1)), 1e-12);
  for (const at::Tensor& path : {paths.key, paths.value, paths.readout}) EXPECT_GT(norm_of(path.sum(1)), 1e-3);
}

TEST(ClockPaths, OneSlotDoesNotTurn) {
  ops::CyclicFlowInputs in = some_inputs();
  in.readout = at::ones({2, 1, 1}, at::kDouble);
  const ClockPaths paths = clock_paths(in, {}, at::ones(in.v.sizes(), at::kDouble));
  for (const at::Tensor& path : {paths.key, paths.value, paths.readout}) EXPECT_EQ(norm_of(path), 0);
  in.initial_state = ops::CyclicFlowState{};  // the gradient of a state's clock is not asked for
  EXPECT_THROW(clock_paths(in, {}, in.v), std::invalid_argument);
}

// Gradients of all parameters by autograd, with increments that `hook` may change.
std::vector<at::Tensor> plain_gradients(const CausalLM& model, const at::Tensor& ids, const ClockHook& hook) {
  const at::AutoGradMode recorded(true);
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& p : model.parameters()) leaves.push_back(p.detach().clone().requires_grad_(true));
  const Weights w = converted_weights(model.table().specs(), leaves, std::nullopt);
  const int64_t T = ids.size(1) - 1;
  const at::Tensor loss = model.head_loss(w, forward_with_clock(model, w, ids.narrow(1, 0, T), hook), ids.narrow(1, 1, T));
  return torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
}

bool of_clock(const std::string& name) { return name.find(".d_proj.") != std::string::npos; }

double norm_where(const CausalLM& model, const std::vector<at::Tensor>& gradients, const std::function<bool(const std::string&)>& counted) {
  double sum = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (counted(model.table().specs()[i].name)) sum += std::pow(norm_of(gradients[i]), 2);
  }
  return std::sqrt(sum);
}

TEST(Gradients, NormsWithAndWithoutTheStopGradient) {
  const CausalLM stopped = double_model(), open = double_model({{"clock_stop_gradient", false}});
  const at::Tensor ids = test::random_ids(stopped, {1, 12});
  const auto same = [](const ClockLayer&, const at::Tensor& delta) { return delta; };
  const auto with = plain_gradients(stopped, ids, same), without = plain_gradients(open, ids, same);
  const auto all = [](const std::string&) { return true; };
  const auto rest = [](const std::string& name) { return !of_clock(name); };
  const auto loss_of = [&](const CausalLM& model) { return model.next_token_loss(model.weights(), ids).item<double>(); };
  EXPECT_EQ(loss_of(stopped), loss_of(open));
  for (const CausalLM* model : {&stopped, &open}) {  // whatever the config says
    const Gradients found = measure_gradients(*model, model->weights(), ids);
    EXPECT_NEAR(found.loss, loss_of(*model), 1e-12);
    EXPECT_NEAR(found.all.with, norm_where(stopped, with, all), 1e-12);
    EXPECT_NEAR(found.all.without, norm_where(stopped, without, all), 1e-12);
    EXPECT_NEAR(found.clock.with, norm_where(stopped, with, of_clock), 1e-12);
    EXPECT_NEAR(found.clock.without, norm_where(stopped, without, of_clock), 1e-12);
    EXPECT_NEAR(found.rest.with, norm_where(stopped, with, rest), 1e-12);
    EXPECT_NEAR(found.rest.without, norm_where(stopped, without, rest), 1e-12);
    EXPECT_NEAR(found.share.with, std::pow(found.clock.with / found.all.with, 2), 1e-12);
    EXPECT_GT(std::abs(found.rest.without - found.rest.with), 1e-4);
    double squares = 0;
    int64_t parameters = 0;
    for (const GradientGroup& one : found.groups) {
      squares += std::pow(one.norm.without, 2);
      parameters += one.parameters;
      if (one.name == "v_proj") {
        EXPECT_NEAR(one.norm.with,
                    norm_where(stopped, with, [](const std::string& name) { return name.find("v_proj") != std::string::npos; }), 1e-12);
      }
    }
    EXPECT_NEAR(std::sqrt(squares), found.all.without, 1e-12);
    EXPECT_EQ(parameters, stopped.table().numel());
    ASSERT_EQ(found.layers.size(), 2u);
    EXPECT_NEAR(
        found.layers[1].without,
        norm_where(stopped, without, [&](const std::string& name) { return name.find("layers.1.") != std::string::npos && rest(name); }),
        1e-12);
  }
}

TEST(Gradients, TheStopGradientLeavesExactlyWhatConstantIncrementsLeave) {
  // With it, no gradient comes back through the clock: all parameters but its own have the gradients of a model whose increments are
  // constants, bit for bit.
  const CausalLM model = double_model();
  const at::Tensor ids = test::random_ids(model, {1, 12});
  const auto constant = plain_gradients(model, ids, [](const ClockLayer&, const at::Tensor& delta) { return delta.detach(); });
  const auto rest = [](const std::string& name) { return !of_clock(name); };
  const Gradients found = measure_gradients(model, model.weights(), ids);
  for (const GradientGroup& one : found.groups) {
    if (one.name != "q_proj" && one.name != "v_proj" && one.name != "b_proj" && one.name != "o_proj") continue;
    const auto here = [&](const std::string& name) { return name.find("." + one.name + ".") != std::string::npos; };
    EXPECT_DOUBLE_EQ(one.norm.with, norm_where(model, constant, here)) << one.name;
    EXPECT_NE(one.norm.with, one.norm.without) << one.name;
  }
  EXPECT_NEAR(found.rest.with, norm_where(model, constant, rest), 1e-14);
  EXPECT_EQ(norm_where(model, constant, of_clock), 0);
}

TEST(Gradients, GainAndAlignmentByTheirDefinitions) {
  const CausalLM model = double_model();
  const int64_t T = 8;  // read tokens
  const at::Tensor ids = test::random_ids(model, {1, T + 1});
  const Gradients found = measure_gradients(model, model.weights(), ids);
  ASSERT_EQ(found.clocks.size(), 2u);
  for (size_t layer = 0; layer < 2; ++layer) {
    const ClockGradient& one = found.clocks[layer];
    EXPECT_EQ(one.layer, layer);
    // One token's gradient of the projection: the other tokens' increments are constants.
    const auto of_token = [&](int64_t token) {
      const auto gradients = plain_gradients(model, ids, [&](const ClockLayer& here, const at::Tensor& delta) {
        const at::Tensor chosen = at::arange(T).eq(token).view({1, T, 1});
        return here.layer == layer ? at::where(chosen, delta, delta.detach()) : delta;
      });
      const std::string name = "layers." + std::to_string(layer) + ".";
      return norm_where(model, gradients, [&](const std::string& of) { return of_clock(of) && of.find(name) != std::string::npos; });
    };
    double squares = 0;
    for (int64_t t = 0; t < T; ++t) squares += std::pow(of_token(t), 2);
    EXPECT_NEAR(one.alignment, one.projection / std::sqrt(squares), 1e-9);

    // The derivatives by the clock itself: a leaf is added to it, its differences to the increments.
    const at::Tensor shift = at::zeros({1, T, 3}, at::kDouble).requires_grad_(true);
    at::Tensor increments;
    const Weights w = model.weights();
    const at::Tensor hidden = forward_with_clock(model, w, ids.narrow(1, 0, T), [&](const ClockLayer& here, const at::Tensor& delta) {
      if (here.layer != layer) return delta;
      return increments = delta.detach() + at::cat({shift.narrow(1, 0, 1), shift.diff(1, 1)}, 1);
    });
    const auto gradients = torch::autograd::grad({model.head_loss(w, hidden, ids.narrow(1, 1, T))}, {shift, increments});
    EXPECT_NEAR(one.clock, norm_of(gradients[0]), 1e-12);
    EXPECT_NEAR(one.increment, norm_of(gradients[1]), 1e-12);
    EXPECT_NEAR(one.gain, one.increment / one.clock, 1e-12);
    EXPECT_LT(one.mismatch, 1e-9);
    // |a + b + c|^2 from the norms and cosines of the three.
    for (const auto& [paths, sum] : {std::pair(one.at_clock, one.clock), std::pair(one.at_projection, one.projection)}) {
      const auto& [norm, cosine, left] = paths;
      EXPECT_NEAR(left, sum / (norm[0] + norm[1] + norm[2]), 1e-9);
      const double square = norm[0] * norm[0] + norm[1] * norm[1] + norm[2] * norm[2] +
                            2 * (cosine[0] * norm[0] * norm[1] + cosine[1] * norm[0] * norm[2] + cosine[2] * norm[1] * norm[2]);
      EXPECT_NEAR(std::sqrt(square), sum, 1e-9);
      for (const double path : norm) EXPECT_GT(path, 0);
    }
  }
}

TEST(Gradients, ClocksWithoutProjection) {
  for (const Json& keys : {Json{{"clock", "constant"}}, Json{{"clock", "fixed"}, {"rho", 3}}}) {
    const CausalLM model = double_model(keys);
    const Gradients found = measure_gradients(model, model.weights(), test::random_ids(model, {1, 12}));
    EXPECT_EQ(found.rest.with, found.rest.without);  // they see no input, so there is nothing to stop
    ASSERT_EQ(found.clocks.size(), 2u);
    EXPECT_GT(found.clocks[0].gain, 0);
    if (keys["clock"] == "fixed") {
      EXPECT_EQ(found.clock.with, 0);
      EXPECT_TRUE(std::isnan(found.clocks[0].alignment));
    } else {
      EXPECT_NEAR(found.clock.with, std::hypot(found.clocks[0].projection, found.clocks[1].projection), 1e-12);
      EXPECT_GT(found.clocks[0].alignment, 0);
      EXPECT_LE(found.clocks[0].alignment, std::sqrt(11.0) + 1e-12);  // tokens whose gradients are all equal
    }
  }
}

TEST(Gradients, MeansOverSequencesAndEveryKindOfModel) {
  const CausalLM one = double_model();
  const at::Tensor rows = test::random_ids(one, {2, 9});
  const Gradients first = measure_gradients(one, one.weights(), rows.narrow(0, 0, 1));
  const Gradients second = measure_gradients(one, one.weights(), rows.narrow(0, 1, 1)), both = measure_gradients(one, one.weights(), rows);
  EXPECT_NEAR(both.all.with, (first.all.with + second.all.with) / 2, 1e-12);
  EXPECT_NEAR(both.clocks[1].gain, (first.clocks[1].gain + second.clocks[1].gain) / 2, 1e-12);
  EXPECT_NEAR(both.clocks[1].at_clock.cosine[2], (first.clocks[1].at_clock.cosine[2] + second.clocks[1].at_clock.cosine[2]) / 2, 1e-12);

  const auto same = [](const std::string&) { return true; };
  for (const test::ModelCase& kind : test::model_cases()) {
    const CausalLM model = test::small_model(kind.config);
    const at::Tensor ids = test::random_ids(model, {1, 9});
    const Gradients found = measure_gradients(model, model.weights(), ids);
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& p : model.parameters()) leaves.push_back(p.detach().clone().requires_grad_(true));
    const at::Tensor loss = model.next_token_loss(converted_weights(model.table().specs(), leaves, std::nullopt), ids);
    const auto wanted = torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
    const bool clock = has_clock(model);
    const bool open = kind.name == "CyclicFlowClockWithGradient";
    EXPECT_NEAR((open ? found.all.without : found.all.with) / norm_where(model, wanted, same), 1, 1e-4) << kind.name;
    EXPECT_EQ(clock, kind.name.starts_with("CyclicFlow") || kind.name.starts_with("Hybrid"));
    EXPECT_EQ(std::isnan(found.all.without), !clock) << kind.name;
    EXPECT_EQ(found.clocks.size(), !clock ? 0u : kind.name.starts_with("Hybrid") ? 1u : 2u) << kind.name;
  }
}

}  // namespace
}  // namespace cyfa::analysis
