// ScalarGatedLA's reference: its adjoint against finite differences, and its relation to cyclic_flow, which is two of its
// passes around a token-wise readout (eq:cyfa-two-pass).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "cyfa/kernels/cyclic_flow/reference.h"
#include "cyfa/kernels/scalar_gated_la/reference.h"
#include "tests/kernels/random_case.h"

namespace cyfa::scalar_gated_la::reference {
namespace {

using test::CyclicFlowCase;
using test::random_cyclic_flow_case;
using test::RandomSource;
using test::relative_l2;

struct Case {
  std::vector<int64_t> offsets = {0};
  int64_t H = 0, K = 0, V = 0;
  std::vector<double> q, k, v, log_alpha, initial_state;
  double scale = 1.0;

  int64_t N() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t T() const { return offsets.back(); }
  Inputs inputs() const {
    return {N(), T(), H, K, V, offsets.data(), q.data(), k.data(), v.data(), log_alpha.data(),
            initial_state.empty() ? nullptr : initial_state.data(), scale};
  }
};

Case random_case(const std::vector<int64_t>& lengths, int64_t H, int64_t K, int64_t V, bool initial_state, uint64_t seed) {
  RandomSource random(seed);
  Case c;
  for (const int64_t length : lengths) c.offsets.push_back(c.offsets.back() + length);
  c.H = H;
  c.K = K;
  c.V = V;
  c.q = random.normals(c.T() * H * K);
  c.k = random.normals(c.T() * H * K);
  c.v = random.normals(c.T() * H * V);
  for (int64_t row = 0; row < c.T() * H; ++row) c.log_alpha.push_back(random.log_decay());
  if (initial_state) c.initial_state = random.normals(c.N() * H * K * V);
  c.scale = 1.0 / std::sqrt(static_cast<double>(K));
  return c;
}

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

struct Named {
  const char* name;
  std::vector<double> Case::*input;
  std::vector<double> InputGradients::*gradient;
};

void expect_gradients_match_differences(Case c) {
  RandomSource random(7);
  const std::vector<double> d_o = random.normals(c.T() * c.H * c.V);
  const std::vector<double> d_final = random.normals(c.N() * c.H * c.K * c.V);
  const InputGradients through_o = backward(c.inputs(), d_o.data(), nullptr);
  const InputGradients through_final = backward(c.inputs(), nullptr, d_final.data());
  const InputGradients through_both = backward(c.inputs(), d_o.data(), d_final.data());
  const auto losses = [&] {
    const Outputs out = forward(c.inputs());
    return std::vector<double>{inner(out.o, d_o), inner(out.final_state, d_final)};
  };
  const Named named_inputs[] = {{"q", &Case::q, &InputGradients::q},
                                {"k", &Case::k, &InputGradients::k},
                                {"v", &Case::v, &InputGradients::v},
                                {"log_alpha", &Case::log_alpha, &InputGradients::log_alpha},
                                {"initial_state", &Case::initial_state, &InputGradients::initial_state}};
  for (const Named& named : named_inputs) {
    std::vector<double>& input = c.*named.input;
    if (input.empty()) continue;
    std::vector<std::vector<double>> want(3, std::vector<double>(input.size()));
    for (size_t i = 0; i < input.size(); ++i) {
      const std::vector<double> slope = test::finite_difference(input[i], losses, named.name == std::string("log_alpha"));
      want[0][i] = slope[0];
      want[1][i] = slope[1];
      want[2][i] = slope[0] + slope[1];
    }
    const InputGradients* got[] = {&through_o, &through_final, &through_both};
    for (int path = 0; path < 3; ++path) {
      std::vector<double> error = got[path]->*named.gradient;
      ASSERT_EQ(error.size(), input.size()) << named.name;
      for (size_t i = 0; i < error.size(); ++i) error[i] -= want[path][i];
      EXPECT_LT(std::sqrt(inner(error, error)), 1e-9 * std::sqrt(inner(want[path], want[path])) + 1e-10) << named.name << " path " << path;
    }
  }
}

TEST(ScalarGatedLaReference, GradientsMatchFiniteDifferences) {
  expect_gradients_match_differences(random_case({6}, 1, 3, 3, true, 1));
  expect_gradients_match_differences(random_case({4, 0, 1, 5}, 3, 2, 4, true, 2));
  expect_gradients_match_differences(random_case({0, 7}, 2, 5, 3, false, 3));
  expect_gradients_match_differences(random_case({70}, 1, 2, 2, true, 4));  // crosses a segment of the backward walk
}

TEST(ScalarGatedLaReference, GradientsMatchFiniteDifferencesAtExtremeGates) {
  Case c = random_case({6, 4}, 2, 3, 4, true, 5);
  for (size_t row = 0; row < c.log_alpha.size(); ++row) {
    if (row % 3 == 0) c.log_alpha[row] = 0.0;
    if (row % 5 == 2) c.log_alpha[row] = -1e5;
  }
  expect_gradients_match_differences(c);
  const std::vector<double> d_final(c.N() * c.H * c.K * c.V, 1.0);
  const InputGradients d = backward(c.inputs(), nullptr, d_final.data());
  for (size_t row = 0; row < c.log_alpha.size(); ++row) {
    if (c.log_alpha[row] == -1e5) {
      EXPECT_EQ(d.log_alpha[row], 0.0);
    }
  }
}

// The recurrence unrolls into o_t = sum_{s <= t} (alpha_{s+1} ... alpha_t) (scale q_t . k_s) v_s (plus the initial state).
TEST(ScalarGatedLaReference, UnrollsIntoDecayedAttention) {
  const Case c = random_case({20}, 2, 3, 4, false, 6);
  const Outputs out = forward(c.inputs());
  std::vector<double> want(out.o.size(), 0.0);
  for (int64_t h = 0; h < c.H; ++h) {
    for (int64_t t = 0; t < c.T(); ++t) {
      for (int64_t s = 0; s <= t; ++s) {
        double weight = 0.0;
        for (int64_t i = 0; i < c.K; ++i) weight += c.scale * c.q[(t * c.H + h) * c.K + i] * c.k[(s * c.H + h) * c.K + i];
        double log_decay = 0.0;
        for (int64_t u = s + 1; u <= t; ++u) log_decay += c.log_alpha[u * c.H + h];
        weight *= std::exp(log_decay);
        for (int64_t j = 0; j < c.V; ++j) want[(t * c.H + h) * c.V + j] += weight * c.v[(s * c.H + h) * c.V + j];
      }
    }
  }
  EXPECT_LT(relative_l2(out.o, want), 1e-13);
}

TEST(ScalarGatedLaReference, NoTokensLeavesTheStateAlone) {
  const Case c = random_case({0, 0}, 2, 3, 4, true, 8);
  const Outputs out = forward(c.inputs());
  EXPECT_TRUE(out.o.empty());
  EXPECT_EQ(out.final_state, c.initial_state);
  const InputGradients d = backward(c.inputs(), nullptr, c.initial_state.data());
  EXPECT_EQ(d.initial_state, c.initial_state);
}

TEST(ScalarGatedLaReference, RefusesBadShapesAndOffsets) {
  Case c = random_case({3, 2}, 1, 2, 2, false, 9);
  c.offsets = {0, 6, 5};
  EXPECT_THROW(forward(c.inputs()), std::invalid_argument);
  EXPECT_THROW(backward(c.inputs(), nullptr, nullptr), std::invalid_argument);
  c.offsets = {0, 3, 5};
  c.K = 0;
  EXPECT_THROW(forward(c.inputs()), std::invalid_argument);
}

// What cyclic_flow feeds to the two passes: q and k after their norms, and the write vectors beta U(-clock) b [T, H, M].
struct PassInputs {
  std::vector<double> q, k, writes, clocks;
};

PassInputs pass_inputs(const CyclicFlowCase& c) {
  const cyclic_flow::Shape& s = c.shape;
  PassInputs p;
  const auto normalise = [&](const std::vector<double>& x, const std::vector<double>& weight, double scale) {
    std::vector<double> y = x;
    for (size_t begin = 0; begin < x.size(); begin += s.K) {
      double mean = 0.0;
      for (int64_t i = 0; i < s.K; ++i) mean += x[begin + i] * x[begin + i] / static_cast<double>(s.K);
      for (int64_t i = 0; i < s.K; ++i) y[begin + i] *= scale * (weight.empty() ? 1.0 : weight[i] / std::sqrt(mean + c.norm_eps));
    }
    return y;
  };
  p.q = normalise(c.q, c.q_norm_weight, c.scale);
  p.k = normalise(c.k, c.k_norm_weight, 1.0);
  p.clocks.resize(s.T * s.H);
  p.writes.resize(s.T * s.H * s.M);
  for (int64_t n = 0; n < s.N; ++n) {
    for (int64_t h = 0; h < s.H; ++h) {
      double clock = c.initial_clock.empty() ? 0.0 : c.initial_clock[n * s.H + h];
      for (int64_t t = c.offsets[n]; t < c.offsets[n + 1]; ++t) {
        const int64_t row = t * s.H + h;
        clock += c.delta[row];
        p.clocks[row] = clock;
        const std::vector<double> direction = cyclic_flow::reference::temporal_write(s.M, clock);
        for (int64_t i = 0; i < s.M; ++i) p.writes[row * s.M + i] = c.beta[row] * direction[i];
      }
    }
  }
  return p;
}

Inputs key_pass(const CyclicFlowCase& c, const PassInputs& p) {
  const cyclic_flow::Shape& s = c.shape;
  return {s.N, s.T, s.H, s.K, s.M, c.offsets.data(), p.q.data(), p.k.data(), p.writes.data(), c.log_alpha.data(),
          c.initial_k.empty() ? nullptr : c.initial_k.data(), 1.0};
}

Inputs value_pass(const CyclicFlowCase& c, const PassInputs& p, const std::vector<double>& queries) {
  const cyclic_flow::Shape& s = c.shape;
  return {s.N, s.T, s.H, s.M, s.V, c.offsets.data(), queries.data(), p.writes.data(), c.v.data(), c.log_alpha.data(),
          c.initial_v.empty() ? nullptr : c.initial_v.data(), 1.0};
}

void rotate(int64_t M, double tau, double* x) {
  for (int64_t j = 1; j < M / 2; ++j) {
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(j) * tau / static_cast<double>(M - 1);
    const std::complex<double> z = std::polar(1.0, angle) * std::complex<double>(x[2 * j], x[2 * j + 1]);
    x[2 * j] = z.real();
    x[2 * j + 1] = z.imag();
  }
}

// The middle line of eq:cyfa-two-pass, one token: U(-clock) A^T softmax(A U(clock) scores) with A = R Phi [m, M].
std::vector<double> slot_readout(int64_t M, const std::vector<double>& table, double clock, std::vector<double> scores) {
  const int64_t m = M - 1;
  rotate(M, clock, scores.data());
  std::vector<double> weights(m, 0.0);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t i = 0; i < M; ++i) weights[r] += table[r * M + i] * scores[i];
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0.0;
  for (double& w : weights) sum += w = std::exp(w - largest);
  std::vector<double> query(M, 0.0);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t i = 0; i < M; ++i) query[i] += table[r * M + i] * weights[r] / sum;
  }
  rotate(M, -clock, query.data());
  return query;
}

// eq:cyfa-two-pass, eq:app-first-interface-state, eq:app-second-interface-state.
TEST(ScalarGatedLaReference, TwoPassesAndAReadoutAreCyclicFlow) {
  const std::vector<test::CyclicFlowCaseOptions> cases = {
      {.lengths = {30}, .H = 2, .K = 4, .V = 3, .M = 2, .seed = 71},
      {.lengths = {12, 0, 1, 9}, .H = 3, .K = 5, .V = 4, .M = 16, .seed = 72},
      {.lengths = {25}, .H = 1, .K = 8, .V = 8, .M = 128, .norm_weights = false, .initial_state = false, .seed = 73},
  };
  for (const test::CyclicFlowCaseOptions& options : cases) {
    SCOPED_TRACE("M " + std::to_string(options.M));
    const CyclicFlowCase c = random_cyclic_flow_case(options);
    const cyclic_flow::Shape& s = c.shape;
    const PassInputs p = pass_inputs(c);
    const Outputs keys = forward(key_pass(c, p));
    std::vector<double> queries(s.T * s.H * s.M);
    for (int64_t h = 0; h < s.H; ++h) {
      const std::vector<double> table = cyclic_flow::reference::readout_table(s.M, c.readout.data() + h * s.m() * s.m());
      for (int64_t t = 0; t < s.T; ++t) {
        const int64_t row = t * s.H + h;
        const std::vector<double> scores(keys.o.begin() + row * s.M, keys.o.begin() + (row + 1) * s.M);
        const std::vector<double> query = slot_readout(s.M, table, p.clocks[row], scores);
        std::copy(query.begin(), query.end(), queries.begin() + row * s.M);
      }
    }
    const Outputs values = forward(value_pass(c, p, queries));
    const cyclic_flow::reference::Outputs want = cyclic_flow::reference::forward_absolute(c.inputs());
    EXPECT_LT(relative_l2(values.o, want.o), 1e-12);
    EXPECT_LT(relative_l2(keys.final_state, want.final_k), 1e-12);
    EXPECT_LT(relative_l2(values.final_state, want.final_v), 1e-12);
  }
}

// Through the final states alone the readout takes no part: the gate's gradient is the sum of the two passes' own.
TEST(ScalarGatedLaReference, GatesOfBothPassesAddUp) {
  const CyclicFlowCase c = random_cyclic_flow_case({.lengths = {12, 0, 5}, .H = 2, .K = 4, .V = 3, .M = 16, .seed = 81});
  const PassInputs p = pass_inputs(c);
  const test::CyclicFlowOutputGradients grad = test::random_output_gradients(c.shape, 181);
  cyclic_flow::reference::OutputGradients through_state = grad.view();
  through_state.o = nullptr;
  const cyclic_flow::reference::InputGradients want = cyclic_flow::reference::backward_absolute(c.inputs(), through_state);

  const InputGradients keys = backward(key_pass(c, p), nullptr, grad.final_k.data());
  const std::vector<double> no_queries(c.shape.T * c.shape.H * c.shape.M, 0.0);
  const InputGradients values = backward(value_pass(c, p, no_queries), nullptr, grad.final_v.data());
  std::vector<double> log_alpha = keys.log_alpha;
  for (size_t i = 0; i < log_alpha.size(); ++i) log_alpha[i] += values.log_alpha[i];
  EXPECT_LT(relative_l2(log_alpha, want.log_alpha), 1e-12);
  EXPECT_LT(relative_l2(values.v, want.v), 1e-12);
  EXPECT_LT(relative_l2(keys.initial_state, want.initial_k), 1e-12);
  EXPECT_LT(relative_l2(values.initial_state, want.initial_v), 1e-12);
}

}  // namespace
}  // namespace cyfa::scalar_gated_la::reference
