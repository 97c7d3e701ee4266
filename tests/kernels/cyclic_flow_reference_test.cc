// backward_absolute against finite differences of forward_absolute, for every input through every output, and the reference in special
// cases: extreme gates, large clocks, empty sequences, split and packed runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "cyfa/kernels/cyclic_flow/reference/reference.h"
#include "tests/kernels/random_case.h"

namespace cyfa::cyclic_flow::reference {
namespace {

using test::CyclicFlowCase;
using test::CyclicFlowCaseOptions;
using test::CyclicFlowOutputGradients;
using test::random_cyclic_flow_case;
using test::random_output_gradients;
using test::relative_l2;

constexpr std::array<const char*, 4> kOutputNames = {"o", "final_k", "final_v", "final_clock"};

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// For each output, the change from `base` of a loss, its inner product with a fixed random gradient. Subtracting the outputs first keeps a
// large clock from swamping the small change of its loss.
std::vector<double> losses(const CyclicFlowCase& c, const CyclicFlowOutputGradients& grad, const Outputs& base) {
  const Outputs out = forward_absolute(c.inputs());
  const auto change = [](const std::vector<double>& x, const std::vector<double>& x0, const std::vector<double>& gradient) {
    double sum = 0.0;
    for (size_t i = 0; i < x.size(); ++i) sum += (x[i] - x0[i]) * gradient[i];
    return sum;
  };
  return {change(out.o, base.o, grad.o), change(out.final_k, base.final_k, grad.final_k), change(out.final_v, base.final_v, grad.final_v),
          change(out.final_clock, base.final_clock, grad.final_clock)};
}

OutputGradients only(const CyclicFlowOutputGradients& grad, size_t output) {
  OutputGradients result;
  if (output == 0) result.o = grad.o.data();
  if (output == 1) result.final_k = grad.final_k.data();
  if (output == 2) result.final_v = grad.final_v.data();
  if (output == 3) result.final_clock = grad.final_clock.data();
  return result;
}

struct Named {
  const char* name;
  std::vector<double> CyclicFlowCase::*input;
  std::vector<double> InputGradients::*gradient;
};

const std::vector<Named>& named_inputs() {
  static const std::vector<Named> list = {
      {"q", &CyclicFlowCase::q, &InputGradients::q},
      {"k", &CyclicFlowCase::k, &InputGradients::k},
      {"v", &CyclicFlowCase::v, &InputGradients::v},
      {"log_alpha", &CyclicFlowCase::log_alpha, &InputGradients::log_alpha},
      {"delta", &CyclicFlowCase::delta, &InputGradients::delta},
      {"beta", &CyclicFlowCase::beta, &InputGradients::beta},
      {"readout", &CyclicFlowCase::readout, &InputGradients::readout},
      {"q_norm_weight", &CyclicFlowCase::q_norm_weight, &InputGradients::q_norm_weight},
      {"k_norm_weight", &CyclicFlowCase::k_norm_weight, &InputGradients::k_norm_weight},
      {"initial_k", &CyclicFlowCase::initial_k, &InputGradients::initial_k},
      {"initial_v", &CyclicFlowCase::initial_v, &InputGradients::initial_v},
      {"initial_clock", &CyclicFlowCase::initial_clock, &InputGradients::initial_clock},
  };
  return list;
}

// The absolute term allows for the rounding of a difference: many outputs do not depend on a given input at all.
void expect_close(const std::vector<double>& got, const std::vector<double>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  std::vector<double> error = got;
  for (size_t i = 0; i < error.size(); ++i) error[i] -= want[i];
  EXPECT_LT(std::sqrt(inner(error, error)), 1e-9 * std::sqrt(inner(want, want)) + 1e-11) << what;
}

void expect_gradients_match_differences(CyclicFlowCase c, uint64_t seed) {
  const CyclicFlowOutputGradients grad = random_output_gradients(c.shape, seed);
  std::vector<InputGradients> through;
  for (size_t output = 0; output < kOutputNames.size(); ++output) through.push_back(backward_absolute(c.inputs(), only(grad, output)));
  const Outputs base = forward_absolute(c.inputs());
  const InputGradients through_all = backward_absolute(c.inputs(), grad.view());

  for (const Named& named : named_inputs()) {
    std::vector<double>& input = c.*named.input;
    if (input.empty()) continue;
    std::vector<std::vector<double>> want(kOutputNames.size(), std::vector<double>(input.size()));
    std::vector<double> want_all(input.size(), 0.0);
    const bool is_log_alpha = std::string(named.name) == "log_alpha";
    for (size_t i = 0; i < input.size(); ++i) {
      const std::vector<double> slope = test::finite_difference(
          input[i], [&] { return losses(c, grad, base); }, is_log_alpha);
      for (size_t output = 0; output < slope.size(); ++output) {
        want[output][i] = slope[output];
        want_all[i] += slope[output];
      }
    }
    expect_close(through_all.*named.gradient, want_all, std::string("d ") + named.name + " through all outputs");
    for (size_t output = 0; output < want.size(); ++output) {
      expect_close(through[output].*named.gradient, want[output], std::string("d ") + named.name + " through " + kOutputNames[output]);
    }
  }
}

TEST(CyclicFlowReference, GradientsMatchFiniteDifferences) {
  const std::vector<CyclicFlowCaseOptions> cases = {
      {.lengths = {5}, .H = 1, .K = 3, .V = 2, .M = 2, .seed = 11},
      {.lengths = {6}, .H = 2, .K = 2, .V = 5, .M = 4, .seed = 12},
      {.lengths = {4, 0, 1, 3}, .H = 3, .K = 3, .V = 4, .M = 8, .seed = 13},
      {.lengths = {0, 7, 0}, .H = 3, .K = 5, .V = 3, .M = 16, .seed = 14},
      {.lengths = {3, 4}, .H = 2, .K = 4, .V = 3, .M = 6, .norm_weights = false, .seed = 15},
      {.lengths = {2, 5}, .H = 2, .K = 3, .V = 3, .M = 8, .initial_state = false, .seed = 16},
  };
  for (const CyclicFlowCaseOptions& options : cases) {
    SCOPED_TRACE("M " + std::to_string(options.M) + " seed " + std::to_string(options.seed));
    expect_gradients_match_differences(random_cyclic_flow_case(options), options.seed + 100);
  }
}

TEST(CyclicFlowReference, GradientsMatchFiniteDifferencesAtExtremeGates) {
  CyclicFlowCase c = random_cyclic_flow_case({.lengths = {6, 3}, .H = 2, .K = 3, .V = 4, .M = 8, .seed = 21});
  for (int64_t t = 0; t < c.shape.T; ++t) {
    for (int64_t h = 0; h < c.shape.H; ++h) {
      if (t % 3 == 1) c.log_alpha[t * c.shape.H + h] = h == 0 ? -1e5 : 0.0;
      if (t % 3 == 2) c.log_alpha[t * c.shape.H + h] = h == 0 ? 0.0 : -1e5;
    }
  }
  expect_gradients_match_differences(c, 121);
}

// exp(-1e5) is exactly zero: the past is forgotten, its gradient and that of the gate are exactly zero, and nothing is NaN.
TEST(CyclicFlowReference, ClosedGateForgetsExactly) {
  const int64_t reset = 5;
  CyclicFlowCase c = random_cyclic_flow_case({.lengths = {9}, .H = 2, .K = 3, .V = 4, .M = 8, .seed = 22});
  const Shape s = c.shape;
  for (int64_t h = 0; h < s.H; ++h) c.log_alpha[reset * s.H + h] = -1e5;
  const Outputs out = forward_absolute(c.inputs());

  CyclicFlowCase tail = c;
  const auto drop_head = [&](std::vector<double>& x, int64_t width) { x.erase(x.begin(), x.begin() + reset * s.H * width); };
  drop_head(tail.q, s.K);
  drop_head(tail.k, s.K);
  drop_head(tail.v, s.V);
  drop_head(tail.log_alpha, 1);
  drop_head(tail.delta, 1);
  drop_head(tail.beta, 1);
  tail.shape.T = s.T - reset;
  tail.offsets = {0, tail.shape.T};
  tail.initial_k.clear();
  tail.initial_v.clear();
  for (int64_t t = 0; t < reset; ++t) {
    for (int64_t h = 0; h < s.H; ++h) tail.initial_clock[h] += c.delta[t * s.H + h];
  }
  const Outputs fresh = forward_absolute(tail.inputs());
  for (size_t i = 0; i < fresh.o.size(); ++i) EXPECT_EQ(fresh.o[i], out.o[reset * s.H * s.V + i]);
  EXPECT_EQ(fresh.final_k, out.final_k);
  EXPECT_EQ(fresh.final_v, out.final_v);

  const CyclicFlowOutputGradients grad = random_output_gradients(s, 122);
  OutputGradients late = grad.view();
  std::vector<double> late_o = grad.o;
  std::fill_n(late_o.begin(), reset * s.H * s.V, 0.0);
  late.o = late_o.data();
  const InputGradients d = backward_absolute(c.inputs(), late);
  for (int64_t row = 0; row < reset * s.H; ++row) {
    EXPECT_EQ(d.log_alpha[row], 0.0);
    EXPECT_EQ(d.beta[row], 0.0);
    for (int64_t i = 0; i < s.K; ++i) EXPECT_EQ(d.k[row * s.K + i], 0.0);
    for (int64_t i = 0; i < s.V; ++i) EXPECT_EQ(d.v[row * s.V + i], 0.0);
  }
  for (int64_t h = 0; h < s.H; ++h) EXPECT_EQ(d.log_alpha[reset * s.H + h], 0.0);
  for (const double x : d.initial_k) EXPECT_EQ(x, 0.0);
  for (const double x : d.initial_v) EXPECT_EQ(x, 0.0);
}

// P has period m: a clock of a million or more gives the same bits as the same clock modulo m. The increments are multiples of 2^-20, so
// both clocks are exact sums.
TEST(CyclicFlowReference, LargeClocksAreExact) {
  for (const int64_t M : {4, 16, 128}) {
    for (const double clock : {1e6 + 0.25, 1e9 + 0.5, -1e6 - 0.75}) {
      CyclicFlowCase c = random_cyclic_flow_case({.lengths = {12, 5}, .H = 2, .K = 3, .V = 4, .M = M, .seed = 31});
      for (double& x : c.delta) x = std::floor(x * 1048576.0) / 1048576.0;
      CyclicFlowCase reduced = c;
      for (double& x : c.initial_clock) x = clock;
      for (double& x : reduced.initial_clock) x = std::fmod(clock, static_cast<double>(M - 1));
      for (const auto forward : {forward_physical, forward_fourier, forward_absolute}) {
        const Outputs far = forward(c.inputs());
        const Outputs near = forward(reduced.inputs());
        if (clock > 0.0) {
          EXPECT_EQ(far.o, near.o) << "M " << M << " clock " << clock;
          EXPECT_EQ(far.final_k, near.final_k) << "M " << M << " clock " << clock;
          EXPECT_EQ(far.final_v, near.final_v) << "M " << M << " clock " << clock;
        }
        EXPECT_LT(relative_l2(far.o, near.o), 1e-12) << "M " << M << " clock " << clock;
      }
      const CyclicFlowOutputGradients grad = random_output_gradients(c.shape, 131);
      const InputGradients far = backward_absolute(c.inputs(), grad.view());
      const InputGradients near = backward_absolute(reduced.inputs(), grad.view());
      for (const Named& named : named_inputs()) {
        EXPECT_LT(relative_l2(far.*named.gradient, near.*named.gradient), 1e-12) << "d " << named.name << " clock " << clock;
      }
    }
  }
}

TEST(CyclicFlowReference, NoTokensLeavesTheStateAlone) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, std::vector<int64_t>{0}, std::vector<int64_t>{0, 0, 0}}) {
    const CyclicFlowCase c = random_cyclic_flow_case({.lengths = lengths, .H = 2, .K = 3, .V = 4, .M = 8, .seed = 41});
    const Outputs out = forward_absolute(c.inputs());
    EXPECT_TRUE(out.o.empty());
    EXPECT_EQ(out.final_k, c.initial_k);
    EXPECT_EQ(out.final_v, c.initial_v);
    EXPECT_EQ(out.final_clock, c.initial_clock);
    for (const auto forward : {forward_physical, forward_fourier}) {
      const Outputs other = forward(c.inputs());
      EXPECT_LT(relative_l2(other.final_k, c.initial_k), 1e-13);
      EXPECT_LT(relative_l2(other.final_v, c.initial_v), 1e-13);
      EXPECT_EQ(other.final_clock, c.initial_clock);
    }
    const CyclicFlowOutputGradients grad = random_output_gradients(c.shape, 141);
    const InputGradients d = backward_absolute(c.inputs(), grad.view());
    EXPECT_TRUE(d.q.empty());
    EXPECT_EQ(d.initial_k, grad.final_k);
    EXPECT_EQ(d.initial_v, grad.final_v);
    EXPECT_EQ(d.initial_clock, grad.final_clock);
    for (const double x : d.readout) EXPECT_EQ(x, 0.0);
  }
}

TEST(CyclicFlowReference, AbsentInitialStateIsZero) {
  CyclicFlowCase c = random_cyclic_flow_case({.lengths = {4, 6}, .H = 2, .K = 3, .V = 4, .M = 8, .initial_state = false, .seed = 51});
  const CyclicFlowOutputGradients grad = random_output_gradients(c.shape, 151);
  const Outputs out = forward_absolute(c.inputs());
  const InputGradients d = backward_absolute(c.inputs(), grad.view());
  c.initial_k.assign(d.initial_k.size(), 0.0);
  c.initial_v.assign(d.initial_v.size(), 0.0);
  c.initial_clock.assign(d.initial_clock.size(), 0.0);
  EXPECT_EQ(forward_absolute(c.inputs()).o, out.o);
  const InputGradients same = backward_absolute(c.inputs(), grad.view());
  for (const Named& named : named_inputs()) EXPECT_EQ(same.*named.gradient, d.*named.gradient) << named.name;
}

// Tokens `begin` .. `end` - 1 of a case with one sequence.
CyclicFlowCase slice(const CyclicFlowCase& c, int64_t begin, int64_t end) {
  CyclicFlowCase part = c;
  const auto cut = [&](const std::vector<double>& x, int64_t width) {
    return std::vector<double>(x.begin() + begin * c.shape.H * width, x.begin() + end * c.shape.H * width);
  };
  part.q = cut(c.q, c.shape.K);
  part.k = cut(c.k, c.shape.K);
  part.v = cut(c.v, c.shape.V);
  part.log_alpha = cut(c.log_alpha, 1);
  part.delta = cut(c.delta, 1);
  part.beta = cut(c.beta, 1);
  part.shape.T = end - begin;
  part.offsets = {0, end - begin};
  return part;
}

std::vector<double> joined(std::vector<double> a, const std::vector<double>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The bits of forward do not depend on where a sequence is split, and gradients chain through the carried state. 150 tokens span several of
// backward's segments of 64.
TEST(CyclicFlowReference, SplitRunsWithCarriedStateAreTheWholeRun) {
  const CyclicFlowCase whole = random_cyclic_flow_case({.lengths = {150}, .H = 2, .K = 4, .V = 3, .M = 8, .seed = 61});
  const CyclicFlowOutputGradients grad = random_output_gradients(whole.shape, 161);
  const Outputs out = forward_absolute(whole.inputs());
  const InputGradients d = backward_absolute(whole.inputs(), grad.view());
  for (const int64_t split : {1, 63, 64, 65, 128, 149}) {
    const CyclicFlowCase first = slice(whole, 0, split);
    const Outputs out_first = forward_absolute(first.inputs());
    CyclicFlowCase second = slice(whole, split, 150);
    second.initial_k = out_first.final_k;
    second.initial_v = out_first.final_v;
    second.initial_clock = out_first.final_clock;
    const Outputs out_second = forward_absolute(second.inputs());
    EXPECT_EQ(joined(out_first.o, out_second.o), out.o);
    EXPECT_EQ(out_second.final_k, out.final_k);
    EXPECT_EQ(out_second.final_v, out.final_v);
    EXPECT_EQ(out_second.final_clock, out.final_clock);

    const int64_t boundary = split * whole.shape.H * whole.shape.V;
    OutputGradients grad_second = grad.view();
    grad_second.o = grad.o.data() + boundary;
    const InputGradients d_second = backward_absolute(second.inputs(), grad_second);
    const OutputGradients grad_first{grad.o.data(), d_second.initial_k.data(), d_second.initial_v.data(), d_second.initial_clock.data()};
    const InputGradients d_first = backward_absolute(first.inputs(), grad_first);
    for (const auto gradient : {&InputGradients::q, &InputGradients::k, &InputGradients::v, &InputGradients::log_alpha,
                                &InputGradients::delta, &InputGradients::beta}) {
      EXPECT_EQ(joined(d_first.*gradient, d_second.*gradient), d.*gradient) << "split at " << split;
    }
    EXPECT_EQ(d_first.initial_k, d.initial_k);
    EXPECT_EQ(d_first.initial_v, d.initial_v);
    EXPECT_EQ(d_first.initial_clock, d.initial_clock);
    for (const auto gradient : {&InputGradients::readout, &InputGradients::q_norm_weight, &InputGradients::k_norm_weight}) {
      std::vector<double> sum = d_first.*gradient;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += (d_second.*gradient)[i];
      EXPECT_LT(relative_l2(sum, d.*gradient), 1e-13) << "split at " << split;
    }
  }
}

// Packed sequences are independent, bit for bit; an empty one passes its state through.
TEST(CyclicFlowReference, PackedSequencesDoNotMix) {
  const CyclicFlowCase packed = random_cyclic_flow_case({.lengths = {3, 0, 1, 8, 0}, .H = 3, .K = 3, .V = 5, .M = 8, .seed = 71});
  const Shape s = packed.shape;
  const Outputs out = forward_absolute(packed.inputs());
  for (int64_t n = 0; n < s.N; ++n) {
    CyclicFlowCase alone = slice(packed, packed.offsets[n], packed.offsets[n + 1]);
    const auto part = [&](const std::vector<double>& x, int64_t width) {
      return std::vector<double>(x.begin() + n * s.H * width, x.begin() + (n + 1) * s.H * width);
    };
    alone.shape.N = 1;
    alone.initial_k = part(packed.initial_k, s.K * s.M);
    alone.initial_v = part(packed.initial_v, s.M * s.V);
    alone.initial_clock = part(packed.initial_clock, 1);
    const Outputs out_alone = forward_absolute(alone.inputs());
    const int64_t begin = packed.offsets[n] * s.H * s.V;
    EXPECT_EQ(out_alone.o, std::vector<double>(out.o.begin() + begin, out.o.begin() + packed.offsets[n + 1] * s.H * s.V));
    EXPECT_EQ(out_alone.final_k, part(out.final_k, s.K * s.M));
    EXPECT_EQ(out_alone.final_v, part(out.final_v, s.M * s.V));
    EXPECT_EQ(out_alone.final_clock, part(out.final_clock, 1));
  }
}

TEST(CyclicFlowReference, TheFutureNeverChangesThePast) {
  const CyclicFlowCase c = random_cyclic_flow_case({.lengths = {10}, .H = 2, .K = 3, .V = 4, .M = 8, .seed = 81});
  const int64_t past = 6 * c.shape.H;
  for (const auto forward : {forward_physical, forward_fourier, forward_absolute}) {
    const Outputs out = forward(c.inputs());
    CyclicFlowCase changed = c;
    for (size_t i = past; i < changed.log_alpha.size(); ++i) {
      changed.log_alpha[i] = -1e5;
      changed.delta[i] = 0.999;
      changed.beta[i] = 0.001;
    }
    for (size_t i = past * c.shape.K; i < changed.q.size(); ++i) changed.q[i] = changed.k[i] = 1e3;
    const Outputs out_changed = forward(changed.inputs());
    for (int64_t i = 0; i < past * c.shape.V; ++i) EXPECT_EQ(out_changed.o[i], out.o[i]);
  }
}

// A token with log_alpha = 0, delta = 0 and beta = 0 changes nothing, bit for bit.
TEST(CyclicFlowReference, NeutralTokenIsANoOp) {
  CyclicFlowCase c = random_cyclic_flow_case({.lengths = {7}, .H = 2, .K = 3, .V = 4, .M = 8, .seed = 91});
  const Outputs before = forward_absolute(slice(c, 0, 6).inputs());
  for (int64_t h = 0; h < c.shape.H; ++h) c.log_alpha[6 * c.shape.H + h] = c.delta[6 * c.shape.H + h] = c.beta[6 * c.shape.H + h] = 0.0;
  const Outputs after = forward_absolute(c.inputs());
  EXPECT_EQ(after.final_k, before.final_k);
  EXPECT_EQ(after.final_v, before.final_v);
  EXPECT_EQ(after.final_clock, before.final_clock);
}

// From a zero state and without a gradient through the final state, the loss does not depend on the clock's origin (Proposition 6): the
// gradients of all clocks of a sequence sum to zero.
TEST(CyclicFlowReference, ClockGradientsSumToZeroFromAZeroState) {
  const CyclicFlowCase c =
      random_cyclic_flow_case({.lengths = {40, 1, 9}, .H = 3, .K = 4, .V = 4, .M = 16, .initial_state = false, .seed = 95});
  const CyclicFlowOutputGradients grad = random_output_gradients(c.shape, 195);
  OutputGradients through_o;
  through_o.o = grad.o.data();
  const InputGradients d = backward_absolute(c.inputs(), through_o);
  const double size = std::sqrt(inner(d.delta, d.delta));
  for (const double x : d.initial_clock) EXPECT_LT(std::abs(x), 1e-13 * size);
}

// Logits in the millions: the maximum is subtracted before exp, so the weights select one slot and nothing overflows.
TEST(CyclicFlowReference, HugeScoresStayFinite) {
  CyclicFlowCase c = random_cyclic_flow_case({.lengths = {6}, .H = 2, .K = 3, .V = 4, .M = 8, .norm_weights = false, .seed = 97});
  c.scale = 1e7;
  for (const auto forward : {forward_physical, forward_fourier, forward_absolute}) {
    for (const double x : forward(c.inputs()).o) EXPECT_TRUE(std::isfinite(x));
  }
  const CyclicFlowOutputGradients grad = random_output_gradients(c.shape, 197);
  const InputGradients d = backward_absolute(c.inputs(), grad.view());
  for (const Named& named : named_inputs()) {
    for (const double x : d.*named.gradient) EXPECT_TRUE(std::isfinite(x)) << "d " << named.name;
  }
}

TEST(CyclicFlowReference, RefusesBadShapesAndOffsets) {
  const CyclicFlowCase good = random_cyclic_flow_case({.lengths = {3, 2}, .seed = 99});
  for (const int64_t M : {0, 1, 7, -2}) {
    CyclicFlowCase bad = good;
    bad.shape.M = M;
    EXPECT_THROW(forward_absolute(bad.inputs()), std::invalid_argument) << M;
  }
  for (const std::vector<int64_t>& offsets : {std::vector<int64_t>{0, 3, 4}, {1, 3, 5}, {0, 6, 5}}) {
    CyclicFlowCase bad = good;
    bad.offsets = offsets;
    EXPECT_THROW(forward_physical(bad.inputs()), std::invalid_argument);
    EXPECT_THROW(backward_absolute(bad.inputs(), {}), std::invalid_argument);
  }
}

}  // namespace
}  // namespace cyfa::cyclic_flow::reference
