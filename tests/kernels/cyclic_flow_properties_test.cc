// The statements of the paper's appendix (Propositions 1 to 6, Corollary 1, the identities between the coordinate forms, the fixed-rate
// profile, chunk transport and padded storage) as properties of the reference, on random inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <string>
#include <vector>

#include "cyfa/kernels/cyclic_flow/reference/reference.h"
#include "tests/kernels/random_case.h"

namespace cyfa::cyclic_flow::reference {
namespace {

using test::CyclicFlowCase;
using test::CyclicFlowCaseOptions;
using test::random_cyclic_flow_case;
using test::RandomSource;
using test::relative_l2;
using Matrix = std::vector<double>;  // row-major

constexpr int64_t kActiveSlots[] = {1, 3, 5, 15, 31, 127, 255};

Matrix product(const Matrix& a, const Matrix& b, int64_t rows, int64_t inner, int64_t columns) {
  Matrix c(rows * columns, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < inner; ++i) {
      for (int64_t s = 0; s < columns; ++s) c[r * columns + s] += a[r * inner + i] * b[i * columns + s];
    }
  }
  return c;
}

Matrix transpose(const Matrix& a, int64_t rows, int64_t columns) {
  Matrix b(a.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) b[c * rows + r] = a[r * columns + c];
  }
  return b;
}

Matrix identity(int64_t m) {
  Matrix eye(m * m, 0.0);
  for (int64_t r = 0; r < m; ++r) eye[r * m + r] = 1.0;
  return eye;
}

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// eq:app-kernel-sum
double kernel_sum(int64_t m, double x) {
  const double period = static_cast<double>(m);
  double sum = 1.0;
  for (int64_t j = 1; j <= (m - 1) / 2; ++j) sum += 2.0 * std::cos(2.0 * std::numbers::pi * static_cast<double>(j) * x / period);
  return sum / period;
}

// eq:app-kernel-closed; its limit where the denominator vanishes
double kernel_closed(int64_t m, double x) {
  const double period = static_cast<double>(m);
  const double denominator = period * std::sin(std::numbers::pi * x / period);
  return std::abs(denominator) < 1e-9 ? 1.0 : std::sin(std::numbers::pi * x) / denominator;
}

// P(tau) e_0, a column of the dense matrix.
std::vector<double> profile(int64_t m, double tau) {
  const Matrix shift = fractional_shift(m, tau);
  std::vector<double> column(m);
  for (int64_t r = 0; r < m; ++r) column[r] = shift[r * m];
  return column;
}

// U(tau) on the M stored rows, written independently of the reference with complex numbers.
std::vector<double> rotated(int64_t M, int64_t width, double tau, std::vector<double> rows) {
  for (int64_t j = 1; j < M / 2; ++j) {
    const std::complex<double> turn = std::polar(1.0, 2.0 * std::numbers::pi * static_cast<double>(j) * tau / static_cast<double>(M - 1));
    for (int64_t i = 0; i < width; ++i) {
      const std::complex<double> z = turn * std::complex<double>(rows[2 * j * width + i], rows[(2 * j + 1) * width + i]);
      rows[2 * j * width + i] = z.real();
      rows[(2 * j + 1) * width + i] = z.imag();
    }
  }
  return rows;
}

// Relative-time slots of one head, [m, K] and [m, V], from the stored states of all heads.
struct Slots {
  Matrix keys, values;
};

Slots slots_of(const Shape& s, const std::vector<double>& state_k, const std::vector<double>& state_v, double clock, int64_t pair) {
  const std::vector<double> stored(state_k.begin() + pair * s.K * s.M, state_k.begin() + (pair + 1) * s.K * s.M);
  return {relative_from_absolute(s.M, s.K, transpose(stored, s.K, s.M).data(), clock),
          relative_from_absolute(s.M, s.V, state_v.data() + pair * s.M * s.V, clock)};
}

Slots final_slots(const Shape& s, const Outputs& out, int64_t pair) {
  return slots_of(s, out.final_k, out.final_v, out.final_clock[pair], pair);
}

// The first `length` tokens of a one-sequence case.
CyclicFlowCase prefix(const CyclicFlowCase& c, int64_t length) {
  CyclicFlowCase part = c;
  part.shape.T = length;
  part.offsets = {0, length};
  return part;
}

// The clock before the first and after each token of a case with one sequence and one head.
std::vector<double> clocks_of(const CyclicFlowCase& c) {
  std::vector<double> clocks = {c.initial_clock.empty() ? 0.0 : c.initial_clock[0]};
  for (int64_t t = 0; t < c.shape.T; ++t) clocks.push_back(forward_absolute(prefix(c, t + 1).inputs()).final_clock[0]);
  return clocks;
}

// Proposition 1: Phi and P(tau) are orthogonal.
TEST(CyclicFlowProperties, ShiftsAreOrthogonal) {
  RandomSource random(1);
  for (const int64_t m : kActiveSlots) {
    const Matrix basis = real_fourier_basis(m);
    EXPECT_LT(largest_difference(product(transpose(basis, m, m), basis, m, m, m), identity(m)), 1e-12) << m;
    const Matrix shift = fractional_shift(m, random.uniform(-300.0, 300.0));
    EXPECT_LT(largest_difference(product(transpose(shift, m, m), shift, m, m, m), identity(m)), 1e-12) << m;
  }
}

// Proposition 1 (eq:app-group-properties): P(a) P(b) = P(a + b), P(tau)^-1 = P(-tau), P(tau + m) = P(tau).
TEST(CyclicFlowProperties, ShiftsAreAPeriodicGroup) {
  RandomSource random(2);
  for (const int64_t m : kActiveSlots) {
    const double a = random.uniform(-40.0, 40.0);
    const double b = random.uniform(-1.0, 1.0);
    const Matrix shift = fractional_shift(m, a);
    EXPECT_LT(largest_difference(product(shift, fractional_shift(m, b), m, m, m), fractional_shift(m, a + b)), 1e-12) << m;
    EXPECT_LT(largest_difference(product(shift, fractional_shift(m, -a), m, m, m), identity(m)), 1e-12) << m;
    EXPECT_LT(largest_difference(fractional_shift(m, -a), transpose(shift, m, m)), 1e-13) << m;
    for (const double cycles : {1.0, -3.0, 1e4}) {
      // At 1e6 the sum is rounded to about 1e-10 of a slot.
      EXPECT_LT(largest_difference(fractional_shift(m, a + cycles * static_cast<double>(m)), shift), 1e-8) << m;
    }
    EXPECT_EQ(fractional_shift(m, 0.375 + 4.0 * static_cast<double>(m)), fractional_shift(m, 0.375)) << m;
  }
}

// Proposition 1: P(1) is the cyclic permutation (eq:cyfa-cyclic-permutation); eq:cyfa-shift-properties: P(0) = P(m) = I.
TEST(CyclicFlowProperties, UnitShiftIsTheCyclicPermutation) {
  for (const int64_t m : kActiveSlots) {
    Matrix permutation(m * m, 0.0);
    for (int64_t r = 0; r + 1 < m; ++r) permutation[(r + 1) * m + r] = 1.0;
    permutation[m - 1] = 1.0;
    EXPECT_LT(largest_difference(fractional_shift(m, 1.0), permutation), 1e-12) << m;
    EXPECT_LT(largest_difference(fractional_shift(m, 0.0), identity(m)), 1e-12) << m;
    EXPECT_LT(largest_difference(fractional_shift(m, static_cast<double>(m)), identity(m)), 1e-12) << m;
  }
}

// eq:app-b-explicit and eq:app-frame-orbit: Phi^T e_r = U(r) b.
TEST(CyclicFlowProperties, SlotsAreTheOrbitOfTheWriteVector) {
  for (const int64_t m : kActiveSlots) {
    const int64_t M = m + 1;
    const std::vector<double> b = temporal_write(M, 0.0);
    for (int64_t row = 0; row < M; ++row) {
      const double want = row == 0 ? std::sqrt(1.0 / static_cast<double>(m)) : row % 2 == 0 ? std::sqrt(2.0 / static_cast<double>(m)) : 0.0;
      EXPECT_NEAR(b[row], want, 1e-15);
    }
    const Matrix basis = readout_table(M, identity(m).data());
    for (int64_t r = 0; r < m; ++r) {
      const std::vector<double> slot(basis.begin() + r * M, basis.begin() + (r + 1) * M);
      EXPECT_LT(largest_difference(slot, rotated(M, 1, static_cast<double>(r), b)), 1e-12);
      EXPECT_LT(largest_difference(slot, temporal_write(M, -static_cast<double>(r))), 1e-13);
    }
  }
}

// Proposition 2: matrix entries = inner product of rotated write vectors = cosine sum = closed form.
TEST(CyclicFlowProperties, KernelHasItsClosedForm) {
  RandomSource random(3);
  for (const int64_t m : kActiveSlots) {
    const double tau = random.uniform(-2.0 * static_cast<double>(m), 2.0 * static_cast<double>(m));
    const Matrix shift = fractional_shift(m, tau);
    const std::vector<double> b = temporal_write(m + 1, 0.0);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t s = 0; s < m; ++s) {
        const double x = tau + static_cast<double>(s - r);
        EXPECT_NEAR(shift[r * m + s], kernel_sum(m, x), 1e-11) << m;
        EXPECT_NEAR(shift[r * m + s], kernel_closed(m, x), 1e-11) << m;
        if (r == 0) {
          EXPECT_NEAR(shift[r * m + s], inner(b, rotated(m + 1, 1, x, b)), 1e-11) << m;
        }
      }
    }
  }
}

// eq:app-cardinality: P(a) e_s = e_{s + a mod m} for integer a.
TEST(CyclicFlowProperties, IntegerShiftsMoveWholeSlots) {
  for (const int64_t m : kActiveSlots) {
    for (const int64_t a : {int64_t{2}, -m - 1, 7 * m + 3, int64_t{1000003}}) {
      const Matrix shift = fractional_shift(m, static_cast<double>(a));
      Matrix want(m * m, 0.0);
      for (int64_t s = 0; s < m; ++s) want[(((s + a) % m + m) % m) * m + s] = 1.0;
      EXPECT_LT(largest_difference(shift, want), 1e-12) << m << " " << a;
    }
  }
}

// eq:app-partition-unity and eq:app-profile-orthogonality.
TEST(CyclicFlowProperties, ProfilesPartitionUnityAndStayOrthonormal) {
  RandomSource random(4);
  for (const int64_t m : kActiveSlots) {
    const Matrix shift = fractional_shift(m, random.uniform(-10.0, 10.0));
    const Matrix columns = transpose(shift, m, m);
    for (int64_t s = 0; s < m; ++s) {
      double sum = 0.0;
      for (int64_t r = 0; r < m; ++r) sum += columns[s * m + r];
      EXPECT_NEAR(sum, 1.0, 1e-12) << m;
    }
    EXPECT_LT(largest_difference(product(columns, shift, m, m, m), identity(m)), 1e-12) << m;
  }
}

// Proposition 3 (eq:app-unrolled-K, eq:app-unrolled-V, eq:app-row-decomposition), from a zero state, after every token.
TEST(CyclicFlowProperties, StatesUnrollIntoTransportedWrites) {
  for (const int64_t M : {2, 4, 16, 64}) {
    const CyclicFlowCase c = random_cyclic_flow_case(
        {.lengths = {12}, .H = 1, .K = 3, .V = 5, .M = M, .norm_weights = false, .initial_state = false, .seed = 5});
    const Shape s = c.shape;
    const int64_t m = s.m();
    const std::vector<double> clocks = clocks_of(c);
    for (int64_t t = 1; t <= s.T; ++t) {
      Matrix keys(m * s.K, 0.0);
      Matrix values(m * s.V, 0.0);
      for (int64_t i = 1; i <= t; ++i) {
        double strength = c.beta[i - 1];
        for (int64_t j = i + 1; j <= t; ++j) strength *= std::exp(c.log_alpha[j - 1]);
        const std::vector<double> where = profile(m, clocks[t] - clocks[i]);
        for (int64_t r = 0; r < m; ++r) {
          for (int64_t x = 0; x < s.K; ++x) keys[r * s.K + x] += strength * where[r] * c.k[(i - 1) * s.K + x];
          for (int64_t x = 0; x < s.V; ++x) values[r * s.V + x] += strength * where[r] * c.v[(i - 1) * s.V + x];
        }
      }
      for (const auto forward : {forward_physical, forward_fourier, forward_absolute}) {
        const Slots got = final_slots(s, forward(prefix(c, t).inputs()), 0);
        EXPECT_LT(relative_l2(got.keys, keys), 1e-12) << "M " << M << " t " << t;
        EXPECT_LT(relative_l2(got.values, values), 1e-12) << "M " << M << " t " << t;
      }
    }
  }
}

// Proposition 4 (eq:app-coherent-transport): one more token moves every old profile by the same P(delta).
TEST(CyclicFlowProperties, TransportIsCoherent) {
  for (const int64_t M : {4, 32, 128}) {
    const int64_t m = M - 1;
    const CyclicFlowCase c = random_cyclic_flow_case({.lengths = {6}, .H = 1, .K = 1, .V = 1, .M = M, .seed = 6});
    const std::vector<double> clocks = clocks_of(c);
    for (int64_t t = 1; t < c.shape.T; ++t) {
      const Matrix shift = fractional_shift(m, c.delta[t]);
      for (int64_t i = 1; i <= t; ++i) {
        const std::vector<double> moved = product(shift, profile(m, clocks[t] - clocks[i]), m, m, 1);
        EXPECT_LT(largest_difference(moved, profile(m, clocks[t + 1] - clocks[i])), 1e-12) << M;
      }
    }
  }
}

// Proposition 4 (eq:app-profile-overlap): the overlap of two writes does not depend on the step at which it is read.
TEST(CyclicFlowProperties, ProfileOverlapIsIndependentOfTheStep) {
  for (const int64_t M : {4, 32, 128}) {
    const int64_t m = M - 1;
    const CyclicFlowCase c = random_cyclic_flow_case({.lengths = {6}, .H = 1, .K = 1, .V = 1, .M = M, .seed = 7});
    const std::vector<double> clocks = clocks_of(c);
    for (int64_t i = 1; i <= 3; ++i) {
      for (int64_t j = 1; j <= 3; ++j) {
        for (int64_t t = 3; t <= c.shape.T; ++t) {
          const double overlap = inner(profile(m, clocks[t] - clocks[i]), profile(m, clocks[t] - clocks[j]));
          EXPECT_NEAR(overlap, kernel_closed(m, clocks[i] - clocks[j]), 1e-12) << M;
        }
      }
    }
  }
}

// A run in which only token i writes, with strength 1 and without forgetting: the final state of write i.
Outputs lone_write(const CyclicFlowCase& c, int64_t i) {
  CyclicFlowCase alone = c;
  for (double& x : alone.beta) x = 0.0;
  for (double& x : alone.log_alpha) x = 0.0;
  alone.beta[i] = 1.0;
  return forward_absolute(alone.inputs());
}

// Proposition 5 (eq:app-order-preserving-clock, eq:app-data-dependent-occupancy): the age of a write, measured by the phase of its lowest
// frequency in the state, is the sum of the increments since then; older writes have strictly larger ages.
TEST(CyclicFlowProperties, ClockPreservesOrder) {
  const CyclicFlowCase c =
      random_cyclic_flow_case({.lengths = {40}, .H = 1, .K = 1, .V = 1, .M = 64, .norm_weights = false, .initial_state = false, .seed = 8});
  const int64_t m = c.shape.m();
  const std::vector<double> clocks = clocks_of(c);
  double previous_age = HUGE_VAL;
  for (int64_t i = 0; i < c.shape.T; ++i) {
    const Outputs out = lone_write(c, i);
    const std::vector<double> now = rotated(c.shape.M, 1, out.final_clock[0], out.final_k);
    const double sign = c.k[i] < 0.0 ? -1.0 : 1.0;
    double age = std::arg(std::complex<double>(sign * now[2], sign * now[3])) * static_cast<double>(m) / (2.0 * std::numbers::pi);
    if (age < -1e-9) age += static_cast<double>(m);

    double increments = 0.0;
    for (int64_t u = i + 1; u < c.shape.T; ++u) increments += c.delta[u];
    ASSERT_LT(increments, static_cast<double>(m));
    EXPECT_NEAR(age, increments, 1e-10);
    EXPECT_LT(age, previous_age);
    previous_age = age;
    for (int64_t j = i + 1; j < c.shape.T; ++j) {
      const double gap = clocks[j + 1] - clocks[i + 1];
      EXPECT_GT(gap, 0.0);
      EXPECT_LT(gap, static_cast<double>(j - i));
    }
  }
}

// Corollary 1 (eq:app-factorized-overlap): the overlap is content similarity times profile overlap, for keys and for values.
TEST(CyclicFlowProperties, OverlapOfContributionsFactorises) {
  const CyclicFlowCase c =
      random_cyclic_flow_case({.lengths = {9}, .H = 1, .K = 4, .V = 3, .M = 32, .norm_weights = false, .initial_state = false, .seed = 9});
  const Shape s = c.shape;
  const std::vector<double> clocks = clocks_of(c);
  std::vector<Slots> contributions;
  for (int64_t i = 0; i < s.T; ++i) contributions.push_back(final_slots(s, lone_write(c, i), 0));
  const auto row = [](const std::vector<double>& x, int64_t i, int64_t width) {
    return std::vector<double>(x.begin() + i * width, x.begin() + (i + 1) * width);
  };
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t j = 0; j < s.T; ++j) {
      const double overlap = kernel_closed(s.m(), clocks[i + 1] - clocks[j + 1]);
      EXPECT_NEAR(inner(contributions[i].keys, contributions[j].keys), inner(row(c.k, i, s.K), row(c.k, j, s.K)) * overlap, 1e-12);
      EXPECT_NEAR(inner(contributions[i].values, contributions[j].values), inner(row(c.v, i, s.V), row(c.v, j, s.V)) * overlap, 1e-12);
    }
  }
}

// eq:cyfa-transport-correspondence (eq:app-reconstruct-shifted-state, eq:app-reconstruct-entry): Phi U(clock) maps the old
// state to its shifted slots and the write vector to e_0.
TEST(CyclicFlowProperties, ReconstructionRecoversTransportAndEntry) {
  RandomSource random(10);
  for (const int64_t m : kActiveSlots) {
    const int64_t M = m + 1;
    const double clock = random.uniform(0.0, 500.0);
    const double delta = random.gate();
    std::vector<double> state = random.normals(M * 2);
    state[2] = state[3] = 0.0;  // the padding row
    const Matrix before = relative_from_absolute(M, 2, state.data(), clock);
    const Matrix after = relative_from_absolute(M, 2, state.data(), clock + delta);
    EXPECT_LT(relative_l2(after, product(fractional_shift(m, delta), before, m, m, 2)), 1e-12) << m;

    std::vector<double> entry(m, 0.0);
    entry[0] = 1.0;
    EXPECT_LT(largest_difference(relative_from_absolute(M, 1, temporal_write(M, clock).data(), clock), entry), 1e-12) << m;
  }
}

// Section "Absolute-Clock Coordinates as an Exact Change of Coordinates": the three forms are the same operator, on complete inputs with
// initial states, norm weights and packed sequences, some empty or of length 1.
TEST(CyclicFlowProperties, CoordinateFormsAgree) {
  const std::vector<CyclicFlowCaseOptions> cases = {
      {.lengths = {40}, .H = 1, .K = 3, .V = 5, .M = 2, .seed = 51},
      {.lengths = {0, 20, 1, 13}, .H = 2, .K = 5, .V = 2, .M = 4, .seed = 52},
      {.lengths = {17, 0, 1}, .H = 3, .K = 4, .V = 7, .M = 16, .norm_weights = false, .seed = 53},
      {.lengths = {1, 30}, .H = 2, .K = 8, .V = 4, .M = 32, .initial_state = false, .seed = 54},
      {.lengths = {9, 0, 0, 6}, .H = 1, .K = 16, .V = 8, .M = 128, .seed = 55},
      {.lengths = {3}, .H = 1, .K = 4, .V = 4, .M = 256, .seed = 56},
  };
  for (const CyclicFlowCaseOptions& options : cases) {
    SCOPED_TRACE("M " + std::to_string(options.M));
    const CyclicFlowCase c = random_cyclic_flow_case(options);
    const Outputs absolute = forward_absolute(c.inputs());
    for (const auto forward : {forward_physical, forward_fourier}) {
      const Outputs other = forward(c.inputs());
      EXPECT_LT(relative_l2(other.o, absolute.o), 1e-12);
      EXPECT_LT(relative_l2(other.final_k, absolute.final_k), 1e-12);
      EXPECT_LT(relative_l2(other.final_v, absolute.final_v), 1e-12);
      EXPECT_EQ(other.final_clock, absolute.final_clock);
    }
  }
}

// Proposition 6 (eq:app-gauge-state): shifting the clock's origin by c rotates the absolute states by U(-c) and does not change the output.
// A given initial state is rotated accordingly.
TEST(CyclicFlowProperties, ClockOriginIsFree) {
  for (const int64_t M : {2, 8, 128}) {
    for (const double origin : {0.7, -13.25, 12345.678}) {
      const CyclicFlowCase c = random_cyclic_flow_case({.lengths = {15, 0, 6}, .H = 2, .K = 4, .V = 3, .M = M, .seed = 57});
      const Shape s = c.shape;
      // U(-origin) on every stored K x M and M x V state.
      const auto rotate_keys = [&](const std::vector<double>& state_k) {
        return transpose(rotated(M, s.N * s.H * s.K, -origin, transpose(state_k, s.N * s.H * s.K, M)), M, s.N * s.H * s.K);
      };
      const auto rotate_values = [&](const std::vector<double>& state_v) {
        std::vector<double> result;
        for (int64_t pair = 0; pair < s.N * s.H; ++pair) {
          const auto begin = state_v.begin() + pair * M * s.V;
          const std::vector<double> one = rotated(M, s.V, -origin, std::vector<double>(begin, begin + M * s.V));
          result.insert(result.end(), one.begin(), one.end());
        }
        return result;
      };
      CyclicFlowCase shifted = c;
      for (double& clock : shifted.initial_clock) clock += origin;
      shifted.initial_k = rotate_keys(c.initial_k);
      shifted.initial_v = rotate_values(c.initial_v);

      const Outputs out = forward_absolute(c.inputs());
      const Outputs out_shifted = forward_absolute(shifted.inputs());
      EXPECT_LT(relative_l2(out_shifted.o, out.o), 1e-10) << M;
      EXPECT_LT(relative_l2(out_shifted.final_k, rotate_keys(out.final_k)), 1e-10) << M;
      EXPECT_LT(relative_l2(out_shifted.final_v, rotate_values(out.final_v)), 1e-10) << M;
      for (size_t i = 0; i < out.final_clock.size(); ++i) EXPECT_NEAR(out_shifted.final_clock[i], out.final_clock[i] + origin, 1e-10);
    }
  }
}

// eq:app-address-similarity, eq:app-relative-address-match and eq:app-learned-address-query: write vectors are addresses, and row s of R
// Phi U(clock) is the R-weighted combination of the slots' query addresses.
TEST(CyclicFlowProperties, WriteVectorsAreTemporalAddresses) {
  RandomSource random(11);
  for (const int64_t m : {3, 15, 127}) {
    const int64_t M = m + 1;
    const double now = random.uniform(0.0, 100.0);
    const double then = now - random.uniform(0.0, 50.0);
    const std::vector<double> address = temporal_write(M, then);
    EXPECT_NEAR(inner(address, temporal_write(M, now)), kernel_closed(m, then - now), 1e-12);
    const std::vector<double> where = profile(m, now - then);
    for (int64_t r = 0; r < m; ++r) EXPECT_NEAR(inner(temporal_write(M, now - static_cast<double>(r)), address), where[r], 1e-12);

    const Matrix readout = random.normals(m * m);
    const Matrix table = readout_table(M, readout.data());
    const std::vector<double> read = product(table, rotated(M, 1, now, address), m, M, 1);
    EXPECT_LT(relative_l2(read, product(readout, where, m, m, 1)), 1e-12);
  }
}

// Section "Active Coordinates and Padded Storage": the padding coordinate is exactly zero in the write vector, in the readout table, in the
// states, and in the gradient of an initial state through the readout.
TEST(CyclicFlowProperties, PaddingRowStaysExactlyZero) {
  RandomSource random(12);
  for (const int64_t M : {2, 4, 16, 128, 256}) {
    const int64_t m = M - 1;
    EXPECT_EQ(temporal_write(M, random.uniform(-100.0, 100.0))[1], 0.0);
    const Matrix table = readout_table(M, random.normals(m * m).data());
    for (int64_t r = 0; r < m; ++r) EXPECT_EQ(table[r * M + 1], 0.0);

    const CyclicFlowCase c = random_cyclic_flow_case({.lengths = {3, 0, 2}, .H = 2, .K = 3, .V = 2, .M = M, .seed = 58});
    const Shape s = c.shape;
    for (const auto forward : {forward_physical, forward_fourier, forward_absolute}) {
      const Outputs out = forward(c.inputs());
      for (int64_t row = 0; row < s.N * s.H * s.K; ++row) EXPECT_EQ(out.final_k[row * M + 1], 0.0);
      for (int64_t pair = 0; pair < s.N * s.H; ++pair) {
        for (int64_t i = 0; i < s.V; ++i) EXPECT_EQ(out.final_v[(pair * M + 1) * s.V + i], 0.0);
      }
    }
    const std::vector<double> d_o = random.normals(s.T * s.H * s.V);
    OutputGradients through_o;
    through_o.o = d_o.data();
    const InputGradients d = backward_absolute(c.inputs(), through_o);
    for (int64_t row = 0; row < s.N * s.H * s.K; ++row) EXPECT_EQ(d.initial_k[row * M + 1], 0.0);
    for (int64_t pair = 0; pair < s.N * s.H; ++pair) {
      for (int64_t i = 0; i < s.V; ++i) EXPECT_EQ(d.initial_v[(pair * M + 1) * s.V + i], 0.0);
    }
  }
}

// eq:app-constant-rate-profile: with delta = 1 / rho the profile of a write is the Fourier-Dirichlet profile of Blurry Window Attention,
// with a period of rho m tokens.
TEST(CyclicFlowProperties, FixedRateGivesTheBlurryWindowProfile) {
  for (const double rho : {1.0, 2.5, 4.0, 16.0}) {
    CyclicFlowCase c = random_cyclic_flow_case(
        {.lengths = {30}, .H = 1, .K = 1, .V = 1, .M = 16, .norm_weights = false, .initial_state = false, .seed = 59});
    for (double& x : c.delta) x = 1.0 / rho;
    for (double& x : c.k) x = 1.0;
    const int64_t m = c.shape.m();
    const double cycle = rho * static_cast<double>(m);
    for (int64_t i = 0; i < c.shape.T; i += 7) {
      const Slots got = final_slots(c.shape, lone_write(c, i), 0);
      const double distance = static_cast<double>(c.shape.T - 1 - i);
      for (int64_t r = 0; r < m; ++r) {
        double sum = 1.0;
        for (int64_t h = 1; h <= (m - 1) / 2; ++h) {
          sum += 2.0 * std::cos(2.0 * std::numbers::pi * static_cast<double>(h) * (distance - rho * static_cast<double>(r)) / cycle);
        }
        EXPECT_NEAR(got.keys[r], sum / static_cast<double>(m), 1e-12) << "rho " << rho << " slot " << r;
      }
    }
  }
}

// eq:app-chunk-transport: a chunk without writes scales the carried state by gamma and shifts it by the clock distance of the chunk.
TEST(CyclicFlowProperties, ChunksCarryTransportedStates) {
  for (const int64_t M : {4, 32, 128}) {
    CyclicFlowCase c = random_cyclic_flow_case({.lengths = {20, 7}, .H = 2, .K = 3, .V = 2, .M = M, .seed = 60});
    for (double& x : c.beta) x = 0.0;
    const Shape s = c.shape;
    const int64_t m = s.m();
    const Outputs out = forward_absolute(c.inputs());
    for (int64_t n = 0; n < s.N; ++n) {
      for (int64_t h = 0; h < s.H; ++h) {
        const int64_t pair = n * s.H + h;
        double log_gamma = 0.0;
        double distance = 0.0;
        for (int64_t t = c.offsets[n]; t < c.offsets[n + 1]; ++t) {
          log_gamma += c.log_alpha[t * s.H + h];
          distance += c.delta[t * s.H + h];
        }
        Matrix transport = fractional_shift(m, distance);
        for (double& x : transport) x *= std::exp(log_gamma);
        const Slots before = slots_of(s, c.initial_k, c.initial_v, c.initial_clock[pair], pair);
        const Slots after = final_slots(s, out, pair);
        EXPECT_LT(relative_l2(after.keys, product(transport, before.keys, m, m, s.K)), 1e-11) << M;
        EXPECT_LT(relative_l2(after.values, product(transport, before.values, m, m, s.V)), 1e-11) << M;
      }
    }
  }
}

}  // namespace
}  // namespace cyfa::cyclic_flow::reference
