// The reference of the linear attention recurrences: each against the matrix formula of the paper's Table 1, its adjoint against finite
// differences, relations between the recurrences, and the relation of ScalarGatedLA to cyclic_flow, which is two of its passes around a
// token-wise readout (eq:cyfa-two-pass).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "cyfa/kernels/cyclic_flow/reference/reference.h"
#include "cyfa/kernels/recurrence/reference.h"
#include "tests/kernels/random_case.h"

namespace cyfa::recurrence::reference {
namespace {

using test::CyclicFlowCase;
using test::random_cyclic_flow_case;
using test::RandomSource;
using test::relative_l2;

struct Interface {
  const char* name;
  Gate gate;
  bool delta;
};

const Interface kInterfaces[] = {{"LA", Gate::kNone, false},
                                 {"ScalarGatedLA", Gate::kScalar, false},
                                 {"RowGatedLA", Gate::kRow, false},
                                 {"ColumnGatedLA", Gate::kColumn, false},
                                 {"DeltaRule", Gate::kNone, true},
                                 {"ScalarGatedDeltaRule", Gate::kScalar, true},
                                 {"RowGatedDeltaRule", Gate::kRow, true}};
const Interface& kScalarGatedLa = kInterfaces[1];

struct Case {
  std::vector<int64_t> offsets = {0};
  int64_t H = 0, K = 0, V = 0;
  Gate gate = Gate::kNone;
  std::vector<double> q, k, v, log_alpha, beta, initial_state;
  double scale = 1.0;

  int64_t N() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t T() const { return offsets.back(); }
  Inputs inputs() const {
    const auto given = [](const std::vector<double>& x) { return x.empty() ? nullptr : x.data(); };
    return {N(),  T(), H, K, V, offsets.data(), q.data(), k.data(), v.data(), gate, given(log_alpha), given(beta), given(initial_state),
            scale};
  }
};

Case random_case(const Interface& interface, const std::vector<int64_t>& lengths, int64_t H, int64_t K, int64_t V, bool initial_state,
                 uint64_t seed) {
  RandomSource random(seed);
  Case c;
  for (const int64_t length : lengths) c.offsets.push_back(c.offsets.back() + length);
  c.H = H;
  c.K = K;
  c.V = V;
  c.gate = interface.gate;
  c.q = random.normals(c.T() * H * K);
  c.k = random.normals(c.T() * H * K);
  c.v = random.normals(c.T() * H * V);
  if (interface.delta) {  // keys of about unit length keep the state bounded
    for (double& x : c.k) x /= std::sqrt(static_cast<double>(K));
    for (int64_t row = 0; row < c.T() * H; ++row) c.beta.push_back(1.0 / (1.0 + std::exp(random.normals(1)[0])));
  }
  for (int64_t i = 0; i < c.T() * H * c.inputs().gates(); ++i) c.log_alpha.push_back(random.log_decay());
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
  const Named named_inputs[] = {
      {"q", &Case::q, &InputGradients::q},          {"k", &Case::k, &InputGradients::k},
      {"v", &Case::v, &InputGradients::v},          {"log_alpha", &Case::log_alpha, &InputGradients::log_alpha},
      {"beta", &Case::beta, &InputGradients::beta}, {"initial_state", &Case::initial_state, &InputGradients::initial_state}};
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

class RecurrenceReference : public testing::TestWithParam<Interface> {};

INSTANTIATE_TEST_SUITE_P(Interfaces, RecurrenceReference, testing::ValuesIn(kInterfaces),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(RecurrenceReference, GradientsMatchFiniteDifferences) {
  expect_gradients_match_differences(random_case(GetParam(), {6}, 1, 3, 3, true, 1));
  expect_gradients_match_differences(random_case(GetParam(), {4, 0, 1, 5}, 3, 2, 4, true, 2));
  expect_gradients_match_differences(random_case(GetParam(), {0, 7}, 2, 5, 3, false, 3));
  expect_gradients_match_differences(random_case(GetParam(), {70}, 1, 2, 2, true, 4));  // spans several segments of backward
}

TEST_P(RecurrenceReference, GradientsMatchFiniteDifferencesAtExtremeGates) {
  Case c = random_case(GetParam(), {6, 4}, 2, 3, 4, true, 5);
  for (size_t i = 0; i < c.log_alpha.size(); ++i) {
    if (i % 3 == 0) c.log_alpha[i] = 0.0;
    if (i % 5 == 2) c.log_alpha[i] = -1e5;
  }
  expect_gradients_match_differences(c);
  const std::vector<double> d_final(c.N() * c.H * c.K * c.V, 1.0);
  const InputGradients d = backward(c.inputs(), nullptr, d_final.data());
  for (size_t i = 0; i < c.log_alpha.size(); ++i) {
    if (c.log_alpha[i] == -1e5) {
      EXPECT_EQ(d.log_alpha[i], 0.0);
    }
  }
}

// Matrices as lists of rows, to write Table 1 literally.
using Matrix = std::vector<std::vector<double>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size(), 0.0));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b[0].size(); ++j) {
      for (size_t l = 0; l < b.size(); ++l) c[i][j] += a[i][l] * b[l][j];
    }
  }
  return c;
}

// The state update as in Table 1: (I - beta k k^T) and the gates as matrices to the left and right of the state.
TEST_P(RecurrenceReference, IsTheFormulaOfTable1) {
  const Case c = random_case(GetParam(), {20}, 1, 3, 4, true, 6);
  const auto size = [](int64_t x) { return static_cast<size_t>(x); };
  Matrix state(size(c.K), std::vector<double>(size(c.V)));
  for (int64_t i = 0; i < c.K; ++i) {
    for (int64_t j = 0; j < c.V; ++j) state[size(i)][size(j)] = c.initial_state[size(i * c.V + j)];
  }
  std::vector<double> want;
  for (int64_t t = 0; t < c.T(); ++t) {
    const auto gate = [&](int64_t i) { return std::exp(c.log_alpha[size(t * c.inputs().gates() + i)]); };
    const double beta = c.beta.empty() ? 1.0 : c.beta[size(t)];
    Matrix rows(size(c.K), std::vector<double>(size(c.K), 0.0));
    Matrix columns(size(c.V), std::vector<double>(size(c.V), 0.0));
    Matrix erase(size(c.K), std::vector<double>(size(c.K), 0.0));
    for (int64_t i = 0; i < c.K; ++i) {
      rows[size(i)][size(i)] = c.gate == Gate::kRow ? gate(i) : c.gate == Gate::kScalar ? gate(0) : 1.0;
      for (int64_t j = 0; j < c.K; ++j) {
        erase[size(i)][size(j)] = (i == j ? 1.0 : 0.0) - (c.beta.empty() ? 0.0 : beta * c.k[size(t * c.K + i)] * c.k[size(t * c.K + j)]);
      }
    }
    for (int64_t j = 0; j < c.V; ++j) columns[size(j)][size(j)] = c.gate == Gate::kColumn ? gate(j) : 1.0;
    state = product(product(erase, rows), product(state, columns));
    for (int64_t j = 0; j < c.V; ++j) {
      double o = 0.0;
      for (int64_t i = 0; i < c.K; ++i) {
        state[size(i)][size(j)] += beta * c.k[size(t * c.K + i)] * c.v[size(t * c.V + j)];
        o += state[size(i)][size(j)] * c.scale * c.q[size(t * c.K + i)];
      }
      want.push_back(o);
    }
  }
  EXPECT_LT(relative_l2(forward(c.inputs()).o, want), 1e-13);
}

TEST_P(RecurrenceReference, NoTokensLeavesTheStateAlone) {
  const Case c = random_case(GetParam(), {0, 0}, 2, 3, 4, true, 8);
  const Outputs out = forward(c.inputs());
  EXPECT_TRUE(out.o.empty());
  EXPECT_EQ(out.final_state, c.initial_state);
  const InputGradients d = backward(c.inputs(), nullptr, c.initial_state.data());
  EXPECT_EQ(d.initial_state, c.initial_state);
}

TEST_P(RecurrenceReference, RefusesBadShapesAndOffsets) {
  Case c = random_case(GetParam(), {3, 2}, 1, 2, 2, false, 9);
  c.offsets = {0, 6, 5};
  EXPECT_THROW(forward(c.inputs()), std::invalid_argument);
  EXPECT_THROW(backward(c.inputs(), nullptr, nullptr), std::invalid_argument);
  c.offsets = {0, 3, 5};
  c.K = 0;
  EXPECT_THROW(forward(c.inputs()), std::invalid_argument);
  c.K = 2;
  if (c.gate == Gate::kNone) {
    c.log_alpha.assign(5, 0.0);
  } else {
    c.log_alpha.clear();
  }
  EXPECT_THROW(forward(c.inputs()), std::invalid_argument);
}

// Equal gates for all rows, or for all columns, are one scalar gate; their gradients add up to its gradient.
TEST(RecurrenceReferences, EqualGatesAreOneGate) {
  for (const bool delta : {false, true}) {
    const Case scalar = random_case(delta ? kInterfaces[5] : kScalarGatedLa, {9, 0, 12}, 2, 3, 4, true, 10);
    const std::vector<double> d_o = RandomSource(11).normals(scalar.T() * scalar.H * scalar.V);
    const InputGradients want = backward(scalar.inputs(), d_o.data(), nullptr);
    for (const Gate gate : {Gate::kRow, Gate::kColumn}) {
      Case c = scalar;
      c.gate = gate;
      c.log_alpha.clear();
      const int64_t width = c.inputs().gates();
      for (const double x : scalar.log_alpha) c.log_alpha.insert(c.log_alpha.end(), static_cast<size_t>(width), x);
      EXPECT_LT(relative_l2(forward(c.inputs()).o, forward(scalar.inputs()).o), 1e-14);
      const InputGradients got = backward(c.inputs(), d_o.data(), nullptr);
      EXPECT_LT(relative_l2(got.k, want.k), 1e-13);
      std::vector<double> sums(want.log_alpha.size(), 0.0);
      for (size_t i = 0; i < got.log_alpha.size(); ++i) sums[i / static_cast<size_t>(width)] += got.log_alpha[i];
      EXPECT_LT(relative_l2(sums, want.log_alpha), 1e-12);
    }
  }
}

// RowGatedLA and ColumnGatedLA are transposes of each other: with keys and values exchanged, the state is transposed.
TEST(RecurrenceReferences, ColumnsAreRowsOfTheTranspose) {
  const Case rows = random_case(kInterfaces[2], {15}, 1, 3, 4, true, 12);
  Case columns = rows;
  columns.gate = Gate::kColumn;
  columns.K = rows.V;
  columns.V = rows.K;
  std::swap(columns.k, columns.v);
  columns.q = columns.k;
  for (int64_t i = 0; i < rows.K; ++i) {
    for (int64_t j = 0; j < rows.V; ++j)
      columns.initial_state[static_cast<size_t>(j * rows.K + i)] = rows.initial_state[static_cast<size_t>(i * rows.V + j)];
  }
  const Outputs a = forward(rows.inputs());
  const Outputs b = forward(columns.inputs());
  for (int64_t i = 0; i < rows.K; ++i) {
    for (int64_t j = 0; j < rows.V; ++j) {
      EXPECT_DOUBLE_EQ(a.final_state[static_cast<size_t>(i * rows.V + j)], b.final_state[static_cast<size_t>(j * rows.K + i)]);
    }
  }
}

// After the delta rule with beta = 1, a key of unit length reads back exactly the value that was written with it.
TEST(RecurrenceReferences, AUnitKeyReadsBackItsValue) {
  Case c = random_case(kInterfaces[4], {12}, 1, 4, 3, true, 13);
  for (int64_t t = 0; t < c.T(); ++t) {
    double* key = c.k.data() + t * c.K;
    double norm = 0.0;
    for (int64_t i = 0; i < c.K; ++i) norm += key[i] * key[i];
    for (int64_t i = 0; i < c.K; ++i) key[i] /= std::sqrt(norm);
    c.beta[static_cast<size_t>(t)] = 1.0;
  }
  c.q = c.k;
  c.scale = 1.0;
  EXPECT_LT(relative_l2(forward(c.inputs()).o, c.v), 1e-13);
}

// The inputs of the two passes of cyclic_flow: q and k after their norms, and the write vectors beta U(-clock) b [T, H, M].
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
  return {s.N,
          s.T,
          s.H,
          s.K,
          s.M,
          c.offsets.data(),
          p.q.data(),
          p.k.data(),
          p.writes.data(),
          Gate::kScalar,
          c.log_alpha.data(),
          nullptr,
          c.initial_k.empty() ? nullptr : c.initial_k.data(),
          1.0};
}

Inputs value_pass(const CyclicFlowCase& c, const PassInputs& p, const std::vector<double>& queries) {
  const cyclic_flow::Shape& s = c.shape;
  return {s.N,
          s.T,
          s.H,
          s.M,
          s.V,
          c.offsets.data(),
          queries.data(),
          p.writes.data(),
          c.v.data(),
          Gate::kScalar,
          c.log_alpha.data(),
          nullptr,
          c.initial_v.empty() ? nullptr : c.initial_v.data(),
          1.0};
}

void rotate(int64_t M, double tau, double* x) {
  for (int64_t j = 1; j < M / 2; ++j) {
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(j) * tau / static_cast<double>(M - 1);
    const std::complex<double> z = std::polar(1.0, angle) * std::complex<double>(x[2 * j], x[2 * j + 1]);
    x[2 * j] = z.real();
    x[2 * j + 1] = z.imag();
  }
}

// The middle line of eq:cyfa-two-pass for one token: U(-clock) A^T softmax(A U(clock) scores) with A = R Phi [m, M].
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

// Through the final states only, the readout is not involved: the gate's gradient is the sum of those of the two passes.
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
}  // namespace cyfa::recurrence::reference
