// The CPU decode step of cyclic_flow against the fp64 reference, for every instruction set of this machine.
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cyfa/kernels/cyclic_flow/reference/reference.h"
#include "tests/kernels/random_case.h"

namespace cyfa::cyclic_flow {
namespace {

using test::CyclicFlowCase;
using test::CyclicFlowCaseOptions;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<Isa> available_isas() {
  std::vector<Isa> isas = {Isa::kBaseline};
  if (best_isa() != Isa::kBaseline) isas.push_back(Isa::kAvx2);  // every CPU with AVX-512 has AVX2
  if (best_isa() == Isa::kAvx512) isas.push_back(Isa::kAvx512);
  return isas;
}

std::vector<float> to_float(const std::vector<double>& x) { return {x.begin(), x.end()}; }
std::vector<double> to_double(const std::vector<float>& x) { return {x.begin(), x.end()}; }

// B sequences of T tokens. All values that the step takes as floats are rounded to float, so that both sides see the same inputs.
CyclicFlowCase float_case(int64_t B, int64_t T, int64_t H, int64_t K, int64_t V, int64_t M, uint64_t seed) {
  CyclicFlowCaseOptions options;
  options.lengths.assign(B, T);
  options.H = H;
  options.K = K;
  options.V = V;
  options.M = M;
  options.seed = seed;
  CyclicFlowCase c = test::random_cyclic_flow_case(options);
  for (std::vector<double>* x :
       {&c.q, &c.k, &c.v, &c.log_alpha, &c.delta, &c.beta, &c.q_norm_weight, &c.k_norm_weight, &c.initial_k, &c.initial_v}) {
    *x = to_double(to_float(*x));
  }
  c.scale = static_cast<float>(c.scale);
  c.norm_eps = static_cast<float>(c.norm_eps);
  return c;
}

// The states of a case and its constant tables, ready for steps. Copying it copies the states.
struct Stepper {
  int64_t B, T;
  StepParams p;
  std::vector<float> q, k, v, log_alpha, delta, beta;  // [B, T, H, ...]
  std::vector<float> table, q_norm_weight, k_norm_weight;
  std::vector<float> state_k, state_v, o;
  std::vector<double> clock;

  explicit Stepper(const CyclicFlowCase& c)
      : B(c.shape.N),
        T(c.shape.T / c.shape.N),
        q(to_float(c.q)),
        k(to_float(c.k)),
        v(to_float(c.v)),
        log_alpha(to_float(c.log_alpha)),
        delta(to_float(c.delta)),
        beta(to_float(c.beta)),
        q_norm_weight(to_float(c.q_norm_weight)),
        k_norm_weight(to_float(c.k_norm_weight)),
        state_k(to_float(c.initial_k)),
        state_v(to_float(c.initial_v)),
        clock(c.initial_clock) {
    p.B = B;
    p.H = c.shape.H;
    p.K = c.shape.K;
    p.V = c.shape.V;
    p.M = c.shape.M;
    p.scale = static_cast<float>(c.scale);
    p.norm_eps = static_cast<float>(c.norm_eps);
    o.resize(B * p.H * p.V);
    const int64_t m = c.shape.m();
    table.resize(p.H * p.M * p.M);
    for (int64_t h = 0; h < p.H; ++h) {
      const std::vector<double> rows = reference::readout_table(p.M, &c.readout[h * m * m]);
      std::copy(rows.begin(), rows.end(), &table[h * p.M * p.M]);
    }
  }

  std::vector<float> token(const std::vector<float>& x, int64_t t, int64_t width) const {
    std::vector<float> rows;
    for (int64_t b = 0; b < B; ++b) {
      const float* from = &x[(b * T + t) * p.H * width];
      rows.insert(rows.end(), from, from + p.H * width);
    }
    return rows;
  }

  // Calls run(params) with token t. o holds NaN beforehand.
  template <class Run>
  void with_token(int64_t t, const Run& run) {
    const std::vector<float> qt = token(q, t, p.K), kt = token(k, t, p.K), vt = token(v, t, p.V);
    const std::vector<float> at = token(log_alpha, t, 1), dt = token(delta, t, 1), bt = token(beta, t, 1);
    std::fill(o.begin(), o.end(), kNaN);
    StepParams now = p;
    now.q = qt.data();
    now.k = kt.data();
    now.v = vt.data();
    now.log_alpha = at.data();
    now.delta = dt.data();
    now.beta = bt.data();
    now.readout_table = table.data();
    now.q_norm_weight = q_norm_weight.empty() ? nullptr : q_norm_weight.data();
    now.k_norm_weight = k_norm_weight.empty() ? nullptr : k_norm_weight.data();
    now.state_k = state_k.data();
    now.state_v = state_v.data();
    now.clock = clock.data();
    now.o = o.data();
    run(now);
  }

  void step(int64_t t, int64_t begin, int64_t end, Isa isa) {
    with_token(t, [&](const StepParams& now) {
      std::vector<float> workspace(step_workspace_floats(now), kNaN);
      step_cpu(now, begin, end, workspace.data(), isa);
    });
  }
};

// The step as plain sequential float loops: the baseline for errors of fp32 versions.
void naive_step(const StepParams& p) {
  const int64_t m = p.M - 1;
  const auto norm = [&](const float* x, const float* weight, float scale) {
    float sum = 0.0F;
    for (int64_t i = 0; i < p.K; ++i) sum += x[i] * x[i];
    const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(p.K) + p.norm_eps);
    std::vector<float> y(p.K);
    for (int64_t i = 0; i < p.K; ++i) y[i] = scale * (weight != nullptr ? x[i] * inverse * weight[i] : x[i]);
    return y;
  };
  const auto rotated = [&](std::vector<float> x, const std::vector<double>& unit, float sign) {
    for (int64_t j = 1; j < p.M / 2; ++j) {
      const float c = static_cast<float>(unit[2 * j]), s = sign * static_cast<float>(-unit[2 * j + 1]);
      const float re = x[2 * j], im = x[2 * j + 1];
      x[2 * j] = re * c - im * s;
      x[2 * j + 1] = re * s + im * c;
    }
    return x;
  };
  for (int64_t row = 0; row < p.B * p.H; ++row) {
    const float alpha = std::exp(p.log_alpha[row]);
    p.clock[row] += static_cast<double>(p.delta[row]);
    const std::vector<double> write = reference::temporal_write(p.M, p.clock[row]);
    std::vector<double> unit = write;
    for (double& x : unit) x /= std::sqrt(2.0 / static_cast<double>(m));
    std::vector<float> w(p.M);
    for (int64_t i = 0; i < p.M; ++i) w[i] = p.beta[row] * static_cast<float>(write[i]);
    const std::vector<float> q = norm(p.q + row * p.K, p.q_norm_weight, p.scale);
    const std::vector<float> k = norm(p.k + row * p.K, p.k_norm_weight, 1.0F);

    std::vector<float> scores(p.M, 0.0F);
    for (int64_t c = 0; c < p.K; ++c) {
      for (int64_t i = 0; i < p.M; ++i) {
        float& s = p.state_k[(row * p.K + c) * p.M + i];
        s = alpha * s + k[c] * w[i];
        scores[i] += q[c] * s;
      }
    }
    scores = rotated(scores, unit, 1.0F);
    const float* table = p.readout_table + row % p.H * p.M * p.M;
    std::vector<float> probs(m, 0.0F);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < p.M; ++i) probs[r] += table[r * p.M + i] * scores[i];
    }
    const float top = *std::max_element(probs.begin(), probs.end());
    float total = 0.0F;
    for (float& x : probs) total += x = std::exp(x - top);
    std::vector<float> read(p.M, 0.0F);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t i = 0; i < p.M; ++i) read[i] += probs[r] / total * table[r * p.M + i];
    }
    read = rotated(read, unit, -1.0F);
    std::fill(p.o + row * p.V, p.o + (row + 1) * p.V, 0.0F);
    for (int64_t r = 0; r < p.M; ++r) {
      for (int64_t i = 0; i < p.V; ++i) {
        float& s = p.state_v[(row * p.M + r) * p.V + i];
        s = alpha * s + w[r] * p.v[row * p.V + i];
        p.o[row * p.V + i] += read[r] * s;
      }
    }
  }
}

struct Errors {
  double o = 0.0;  // largest error of any token
  double state_k = 0.0;
  double state_v = 0.0;
};

// Runs all tokens and compares each o, then the final states and clocks.
template <class Run>
Errors errors_of(const CyclicFlowCase& c, const reference::Outputs& want, const Run& run) {
  Stepper stepper(c);
  const int64_t row = c.shape.H * c.shape.V;
  Errors errors;
  for (int64_t t = 0; t < stepper.T; ++t) {
    run(stepper, t);
    std::vector<double> want_o;
    for (int64_t b = 0; b < stepper.B; ++b) {
      const double* from = &want.o[(b * stepper.T + t) * row];
      want_o.insert(want_o.end(), from, from + row);
    }
    errors.o = std::max(errors.o, test::relative_l2(to_double(stepper.o), want_o));
  }
  errors.state_k = test::relative_l2(to_double(stepper.state_k), want.final_k);
  errors.state_v = test::relative_l2(to_double(stepper.state_v), want.final_v);
  EXPECT_EQ(stepper.clock, want.final_clock);
  return errors;
}

// Limits of errors. Twice the error of the plain float loops, plus two roundings (2e-7) for cases in which these happen to be exact, and
// never above the ceilings. A state's error is a decaying sum of roundings of 6e-8: 1e-7 at usual gates, 4.5e-7 after 600 tokens with a
// decay of 0.997. For o the exponential turns the absolute error of a logit (a sum over K, then over M, of terms up to 10) into a relative
// one: 2e-7 to 6e-7 at usual gates, 2e-6 after those 600 tokens.
constexpr double kCeilingState = 1e-6;
constexpr double kCeilingO = 4e-6;

void expect_close(const CyclicFlowCase& c, const std::string& what) {
  const reference::Outputs want = reference::forward_absolute(c.inputs());
  const Errors naive = errors_of(c, want, [](Stepper& s, int64_t t) { s.with_token(t, naive_step); });
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(what + ", " + isa_name(isa));
    const Errors got = errors_of(c, want, [&](Stepper& s, int64_t t) { s.step(t, 0, s.B * s.p.H, isa); });
    EXPECT_LE(got.o, std::min(kCeilingO, 2.0 * naive.o + 2e-7));
    EXPECT_LE(got.state_k, std::min(kCeilingState, 2.0 * naive.state_k + 2e-7));
    EXPECT_LE(got.state_v, std::min(kCeilingState, 2.0 * naive.state_v + 2e-7));
  }
}

std::string shape_name(const CyclicFlowCase& c) {
  const Shape& s = c.shape;
  std::string name;
  for (const auto& [letter, value] : {std::pair{"B", s.N}, {" T", s.T / s.N}, {" H", s.H}, {" K", s.K}, {" V", s.V}, {" M", s.M}}) {
    name += letter + std::to_string(value);
  }
  return name;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(CpuStep, MatchesReferenceAtChosenShapes) {
  const int64_t shapes[][6] = {
      // B, T, H, K, V, M: the published head; the minimum of everything; widths around each vector width; many slots
      {2, 24, 2, 256, 256, 128}, {1, 5, 1, 1, 1, 2},     {3, 40, 3, 7, 5, 4},     {2, 16, 1, 15, 17, 16},
      {2, 16, 3, 33, 31, 34},    {1, 12, 2, 64, 96, 64}, {1, 8, 1, 129, 63, 256}, {1, 4, 1, 20, 12, 512},
  };
  uint64_t seed = 1;
  for (const auto& s : shapes) {
    const CyclicFlowCase c = float_case(s[0], s[1], s[2], s[3], s[4], s[5], seed++);
    expect_close(c, shape_name(c));
  }
}

TEST(CpuStep, MatchesReferenceAtRandomShapes) {
  test::RandomSource random(20);
  const auto pick = [&](int64_t high) { return 1 + static_cast<int64_t>(random.uniform(0.0, static_cast<double>(high))); };
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const int64_t B = pick(4), T = pick(20), H = pick(5), K = pick(80), V = pick(80), M = 2 * pick(seed % 4 == 0 ? 128 : 24);
    const CyclicFlowCase c = float_case(B, T, H, K, V, M, 100 + seed);
    expect_close(c, shape_name(c));
  }
}

TEST(CpuStep, LongChainKeepsItsAccuracy) {
  CyclicFlowCase c = float_case(1, 600, 1, 24, 24, 32, 5);
  for (double& x : c.log_alpha) x = static_cast<float>(0.02 * x);
  expect_close(c, "600 tokens");
}

TEST(CpuStep, NormWeightsAreOptional) {
  for (const bool q_weight : {false, true}) {
    for (const bool k_weight : {false, true}) {
      CyclicFlowCase c = float_case(2, 6, 2, 19, 10, 12, 7);
      if (!q_weight) c.q_norm_weight.clear();
      if (!k_weight) c.k_norm_weight.clear();
      expect_close(c, std::string(q_weight ? "q weight" : "no q weight") + (k_weight ? ", k weight" : ", no k weight"));
    }
  }
}

TEST(CpuStep, ExtremeGates) {
  // No forgetting, complete forgetting (exp(-1e5) is exactly 0), decays near the smallest float; no write; a clock that stands still.
  const double log_alphas[] = {0.0, -1e5, 0.0, -80.0, -1e-7, -1e5, -20.0};
  const double betas[] = {1.0, 0.0, 0.5};
  const double deltas[] = {0.0, 1.0, 1e-6, 0.5, 0.0};
  CyclicFlowCase c = float_case(2, 35, 2, 17, 9, 10, 9);
  for (size_t i = 0; i < c.beta.size(); ++i) {
    c.log_alpha[i] = static_cast<float>(log_alphas[i % std::size(log_alphas)]);
    c.beta[i] = betas[i % std::size(betas)];
    c.delta[i] = static_cast<float>(deltas[i % std::size(deltas)]);
  }
  expect_close(c, "mixed gates");
  for (const double log_alpha : {0.0, -1e5}) {
    std::fill(c.log_alpha.begin(), c.log_alpha.end(), log_alpha);
    expect_close(c, "log_alpha " + std::to_string(log_alpha));
  }
}

TEST(CpuStep, ClockOfAMillion) {
  for (const double start : {1e6, 1e6 + 0.37, 123456789.625, -5.25}) {
    CyclicFlowCase c = float_case(2, 12, 2, 16, 16, 128, 11);
    for (double& clock : c.initial_clock) clock = start;
    expect_close(c, "clock " + std::to_string(start));
  }
}

// Clocks that differ by an exact multiple of m, with increments that add up without rounding, are the same clock.
TEST(CpuStep, ClockIsPeriodicBitForBit) {
  CyclicFlowCase near = float_case(2, 10, 2, 12, 11, 32, 13);
  for (double& clock : near.initial_clock) clock = std::floor(clock * 256.0) / 256.0;
  for (double& delta : near.delta) delta = std::floor(delta * 256.0) / 256.0;
  CyclicFlowCase far = near;
  for (double& clock : far.initial_clock) clock += 31.0 * 32258.0;
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Stepper a(near);
    Stepper b(far);
    for (int64_t t = 0; t < a.T; ++t) {
      a.step(t, 0, a.B * a.p.H, isa);
      b.step(t, 0, b.B * b.p.H, isa);
      EXPECT_TRUE(same_bits(a.o, b.o)) << "token " << t;
    }
    EXPECT_TRUE(same_bits(a.state_k, b.state_k));
    EXPECT_TRUE(same_bits(a.state_v, b.state_v));
    for (size_t i = 0; i < a.clock.size(); ++i) EXPECT_EQ(a.clock[i] + 31.0 * 32258.0, b.clock[i]);
  }
}

TEST(CpuStep, LargeLogitsStayFinite) {
  CyclicFlowCase c = float_case(1, 6, 2, 16, 8, 16, 15);
  c.scale = 1e4;
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Stepper s(c);
    for (int64_t t = 0; t < s.T; ++t) {
      s.step(t, 0, s.B * s.p.H, isa);
      for (const float x : s.o) ASSERT_TRUE(std::isfinite(x)) << "token " << t;
    }
  }
}

TEST(CpuStep, NaNInOneHeadStaysThereAndShows) {
  const CyclicFlowCase c = float_case(2, 1, 3, 9, 6, 8, 16);
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Stepper s(c);
    const int64_t sick = 4;  // b 1, h 1
    s.q[sick * s.p.K + 3] = kNaN;
    s.step(0, 0, s.B * s.p.H, isa);
    for (size_t i = 0; i < s.o.size(); ++i) {
      EXPECT_EQ(std::isnan(s.o[i]), static_cast<int64_t>(i) / s.p.V == sick) << "element " << i;
    }
    for (const float x : s.state_k) EXPECT_FALSE(std::isnan(x));
  }
}

TEST(CpuStep, PiecesOfARangeGiveTheSameBits) {
  const CyclicFlowCase c = float_case(3, 5, 3, 21, 18, 26, 17);
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Stepper whole(c);
    Stepper pieces(c);
    for (int64_t t = 0; t < whole.T; ++t) {
      whole.step(t, 0, 9, isa);
      pieces.with_token(t, [&](const StepParams& now) {
        for (const auto& [begin, end] : {std::pair{6, 9}, {0, 1}, {1, 1}, {1, 6}}) {
          std::vector<float> workspace(step_workspace_floats(now), kNaN);
          step_cpu(now, begin, end, workspace.data(), isa);
        }
      });
      EXPECT_TRUE(same_bits(whole.o, pieces.o)) << "token " << t;
    }
    EXPECT_TRUE(same_bits(whole.state_k, pieces.state_k));
    EXPECT_TRUE(same_bits(whole.state_v, pieces.state_v));
    EXPECT_EQ(whole.clock, pieces.clock);
  }
}

// A batch of one gives the same bits as the same sequence in a larger batch, at any alignment of the workspace.
TEST(CpuStep, BatchAndAlignmentDoNotChangeBits) {
  const CyclicFlowCase c = float_case(3, 1, 2, 14, 13, 18, 18);
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Stepper many(c);
    many.step(0, 0, 6, isa);
    Stepper one(c);
    one.with_token(0, [&](const StepParams& now) {
      for (int64_t b = 0; b < 3; ++b) {
        StepParams single = now;
        single.B = 1;
        single.q += b * now.H * now.K;
        single.k += b * now.H * now.K;
        single.v += b * now.H * now.V;
        single.log_alpha += b * now.H;
        single.delta += b * now.H;
        single.beta += b * now.H;
        single.state_k += b * now.H * now.K * now.M;
        single.state_v += b * now.H * now.M * now.V;
        single.clock += b * now.H;
        single.o += b * now.H * now.V;
        std::vector<float> workspace(step_workspace_floats(single) + b, kNaN);
        step_cpu(single, 0, now.H, workspace.data() + b, isa);
      }
    });
    EXPECT_TRUE(same_bits(many.o, one.o));
    EXPECT_TRUE(same_bits(many.state_k, one.state_k));
    EXPECT_TRUE(same_bits(many.state_v, one.state_v));
  }
}

TEST(CpuStep, LeavesTheRestAlone) {
  const CyclicFlowCase c = float_case(3, 1, 3, 11, 7, 6, 19);
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    const Stepper before(c);
    Stepper after(c);
    after.with_token(0, [&](const StepParams& now) {
      constexpr int64_t kGuard = 32;
      const int64_t size = step_workspace_floats(now);
      std::vector<float> workspace(size + 2 * kGuard, 7.0F);
      step_cpu(now, 2, 5, workspace.data() + kGuard, isa);
      for (int64_t i = 0; i < kGuard; ++i) {
        EXPECT_EQ(workspace[i], 7.0F);
        EXPECT_EQ(workspace[size + kGuard + i], 7.0F);
      }
    });
    for (int64_t row = 0; row < 9; ++row) {
      // step_cpu counts pairs head by head (h B + b); rows of the tensors are b H + h.
      const int64_t pair = row % 3 * 3 + row / 3;
      const bool stepped = pair >= 2 && pair < 5;
      const auto changed = [&](const std::vector<float>& a, const std::vector<float>& b, int64_t size) {
        return std::memcmp(&a[row * size], &b[row * size], size * sizeof(float)) != 0;
      };
      EXPECT_EQ(changed(before.state_k, after.state_k, 11 * 6), stepped) << "row " << row;
      EXPECT_EQ(changed(before.state_v, after.state_v, 7 * 6), stepped) << "row " << row;
      EXPECT_EQ(before.clock[row] != after.clock[row], stepped) << "row " << row;
      for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(std::isnan(after.o[row * 7 + i]), !stepped) << "row " << row;
    }
  }
}

TEST(CpuStep, PaddingRowStaysZero) {
  const CyclicFlowCase c = float_case(2, 20, 2, 13, 9, 22, 21);
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Stepper s(c);
    for (int64_t t = 0; t < s.T; ++t) s.step(t, 0, 4, isa);
    for (int64_t row = 0; row < 4 * 13; ++row) EXPECT_EQ(s.state_k[row * 22 + 1], 0.0F);
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(s.state_v[(row * 22 + 1) * 9 + i], 0.0F);
    }
  }
}

// The step flushes denormal numbers to zero, because computing with them is slow, and restores the caller's floating-point mode.
TEST(CpuStep, RestoresSubnormals) {
  const CyclicFlowCase c = float_case(1, 1, 1, 8, 8, 8, 23);
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Stepper s(c);
    s.step(0, 0, 1, isa);
    volatile float small = 1e-38F;
    volatile float smaller = small * 0.01F;
    EXPECT_GT(smaller, 0.0F);
  }
}

TEST(CpuStep, RefusesWhatItCannotDo) {
  const CyclicFlowCase c = float_case(2, 1, 2, 4, 4, 4, 25);
  Stepper s(c);
  const Stepper before = s;
  const auto attempt = [&](int64_t begin, int64_t end, Isa isa) { s.step(0, begin, end, isa); };
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (static_cast<int>(isa) > static_cast<int>(best_isa())) {
      EXPECT_THROW(attempt(0, 4, isa), std::invalid_argument) << isa_name(isa);
    }
  }
  EXPECT_THROW(attempt(-1, 2, Isa::kBaseline), std::invalid_argument);
  EXPECT_THROW(attempt(3, 2, Isa::kBaseline), std::invalid_argument);
  EXPECT_THROW(attempt(0, 5, Isa::kBaseline), std::invalid_argument);
  for (const int64_t M : {0, 3, -2}) {
    s.with_token(0, [&](StepParams now) {
      now.M = M;
      std::vector<float> workspace(4096);
      EXPECT_THROW(step_cpu(now, 0, 4, workspace.data(), Isa::kBaseline), std::invalid_argument) << "M " << M;
    });
  }
  EXPECT_TRUE(same_bits(s.state_k, before.state_k));
  EXPECT_TRUE(same_bits(s.state_v, before.state_v));
  EXPECT_EQ(s.clock, before.clock);
  EXPECT_NO_THROW(attempt(0, 0, best_isa()));
  EXPECT_NO_THROW(attempt(4, 4, best_isa()));
}

TEST(CpuStep, NamesItsInstructionSets) {
  EXPECT_STREQ(isa_name(Isa::kBaseline), "baseline");
  EXPECT_STREQ(isa_name(Isa::kAvx2), "avx2");
  EXPECT_STREQ(isa_name(Isa::kAvx512), "avx512");
}

}  // namespace
}  // namespace cyfa::cyclic_flow
