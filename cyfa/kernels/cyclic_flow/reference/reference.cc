// The forward definition of cyclic_flow in each of the paper's three coordinate systems:
//   forward_physical  eq:cyfa-physical-recurrence, eq:cyfa-physical-readout: dense P(delta) on relative-time slots
//   forward_fourier   eq:cyfa-relative-fourier: plane rotations of the state
//   forward_absolute  eq:cyfa-absolute-recurrence, eq:cyfa-absolute-readout: write vectors; only vectors are rotated
// The three share norms, gates and the layout of initial and final states, but neither recurrence nor readout, so their agreement is
// evidence of correctness. Called by tests, analyses and the `reference` backend. Allocates its results and overwrites nothing else.
#include "cyfa/kernels/cyclic_flow/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <utility>

#include "cyfa/kernels/cyclic_flow/reference/reference_detail.h"

namespace cyfa::cyclic_flow::reference {
namespace {

struct Phase {
  double cosine;
  double sine;
};

// cos and sin of 2 pi j tau / m. The integer part of tau is reduced modulo m before and after the multiplication by j. Both remainders are
// exact, so a large clock loses no accuracy, and U(-tau) is the transpose of U(tau) bit for bit.
Phase phase(int64_t m, int64_t j, double tau) {
  const double period = static_cast<double>(m);
  const double frequency = static_cast<double>(j);
  const double whole = std::trunc(tau);
  const double part = tau - whole;
  const double turns = (std::fmod(frequency * std::fmod(whole, period), period) + frequency * part) / period;
  const double angle = 2.0 * std::numbers::pi * turns;
  return {std::cos(angle), std::sin(angle)};
}

std::vector<double> normalised(int64_t width, const double* x, const double* weight, double eps) {
  std::vector<double> y(x, x + width);
  if (weight != nullptr) {
    const double inverse = detail::inverse_rms(width, x, eps);
    for (int64_t i = 0; i < width; ++i) y[i] = x[i] * inverse * weight[i];
  }
  return y;
}

// U(-clock) Phi^T slots: M x width from m x width; the inverse of relative_from_absolute.
std::vector<double> absolute_from_relative(int64_t M, int64_t width, const std::vector<double>& relative, double clock) {
  const std::vector<double> basis = detail::stored_basis(M);
  std::vector<double> rows(M * width, 0.0);
  for (int64_t r = 0; r < M - 1; ++r) detail::add_outer(M, width, &basis[r * M], &relative[r * width], rows.data());
  detail::rotate(M, width, -clock, rows.data());
  return rows;
}

// eq:cyfa-physical-recurrence and eq:cyfa-physical-readout on m x K and m x V slots.
class PhysicalMemory {
 public:
  PhysicalMemory(const Inputs& in, int64_t h, const detail::State& start)
      : shape_(in.shape),
        readout_(in.readout + h * shape_.m() * shape_.m()),
        keys_(relative_from_absolute(shape_.M, shape_.K, start.keys.data(), start.clock)),
        values_(relative_from_absolute(shape_.M, shape_.V, start.values.data(), start.clock)),
        clock_(start.clock) {}

  std::vector<double> step(const detail::Token& token) {
    const int64_t m = shape_.m();
    const std::vector<double> shift = fractional_shift(m, token.delta);
    transport_and_write(shape_.K, shift, token, token.k.data(), keys_);
    transport_and_write(shape_.V, shift, token, token.v, values_);
    clock_ += token.delta;

    const std::vector<double> matches = detail::multiply(m, shape_.K, keys_.data(), token.q.data());
    const std::vector<double> weights = detail::softmax(detail::multiply(m, m, readout_, matches.data()));
    const std::vector<double> mixture = detail::multiply_transposed(m, m, readout_, weights.data());
    return detail::multiply_transposed(m, shape_.V, values_.data(), mixture.data());
  }

  detail::State absolute() const {
    return {absolute_from_relative(shape_.M, shape_.K, keys_, clock_), absolute_from_relative(shape_.M, shape_.V, values_, clock_), clock_};
  }

 private:
  // slots <- alpha P(delta) slots + beta e_0 x^T
  void transport_and_write(int64_t width, const std::vector<double>& shift, const detail::Token& token, const double* x,
                           std::vector<double>& slots) const {
    const int64_t m = shape_.m();
    std::vector<double> next(m * width, 0.0);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t s = 0; s < m; ++s) {
        const double coefficient = token.alpha * shift[r * m + s];
        for (int64_t i = 0; i < width; ++i) next[r * width + i] += coefficient * slots[s * width + i];
      }
    }
    for (int64_t i = 0; i < width; ++i) next[i] += token.beta * x[i];
    slots = std::move(next);
  }

  Shape shape_;
  const double* readout_;
  std::vector<double> keys_;
  std::vector<double> values_;
  double clock_;
};

// eq:cyfa-relative-fourier; the readout is eq:cyfa-physical-readout with slots = Phi times the Fourier rows.
class FourierMemory {
 public:
  FourierMemory(const Inputs& in, int64_t h, const detail::State& start)
      : shape_(in.shape), table_(readout_table(shape_.M, in.readout + h * shape_.m() * shape_.m())), state_(start) {
    rotate_state(state_, state_.clock);
  }

  std::vector<double> step(const detail::Token& token) {
    rotate_state(state_, token.delta);
    decay_and_write(shape_.K, token, token.k.data(), state_.keys);
    decay_and_write(shape_.V, token, token.v, state_.values);
    state_.clock += token.delta;

    const int64_t M = shape_.M;
    const std::vector<double> matches = detail::multiply(M, shape_.K, state_.keys.data(), token.q.data());
    const std::vector<double> weights = detail::softmax(detail::multiply(M - 1, M, table_.data(), matches.data()));
    const std::vector<double> mixture = detail::multiply_transposed(M - 1, M, table_.data(), weights.data());
    return detail::multiply_transposed(M, shape_.V, state_.values.data(), mixture.data());
  }

  detail::State absolute() const {
    detail::State state = state_;
    rotate_state(state, -state.clock);
    return state;
  }

 private:
  void rotate_state(detail::State& state, double tau) const {
    detail::rotate(shape_.M, shape_.K, tau, state.keys.data());
    detail::rotate(shape_.M, shape_.V, tau, state.values.data());
  }

  // rows <- alpha rows + beta b x^T, with b of eq:app-b-explicit
  void decay_and_write(int64_t width, const detail::Token& token, const double* x, std::vector<double>& rows) const {
    const double m = static_cast<double>(shape_.m());
    for (int64_t row = 0; row < shape_.M; ++row) {
      double b = 0.0;
      if (row == 0) b = std::sqrt(1.0 / m);
      if (row >= 2 && row % 2 == 0) b = std::sqrt(2.0 / m);
      for (int64_t i = 0; i < width; ++i) {
        double& entry = rows[row * width + i];
        entry = token.alpha * entry + token.beta * b * x[i];
      }
    }
  }

  Shape shape_;
  std::vector<double> table_;
  detail::State state_;  // rows are U(clock) times the absolute-clock rows
};

// eq:cyfa-absolute-recurrence and eq:cyfa-absolute-readout.
class AbsoluteMemory {
 public:
  AbsoluteMemory(const Inputs& in, int64_t h, const detail::State& start)
      : shape_(in.shape), table_(readout_table(shape_.M, in.readout + h * shape_.m() * shape_.m())), state_(start) {}

  std::vector<double> step(const detail::Token& token) {
    detail::advance(shape_, token, state_);
    const int64_t M = shape_.M;
    std::vector<double> scores = detail::multiply(M, shape_.K, state_.keys.data(), token.q.data());
    detail::rotate(M, 1, state_.clock, scores.data());
    const std::vector<double> weights = detail::softmax(detail::multiply(M - 1, M, table_.data(), scores.data()));
    std::vector<double> value_query = detail::multiply_transposed(M - 1, M, table_.data(), weights.data());
    detail::rotate(M, 1, -state_.clock, value_query.data());
    return detail::multiply_transposed(M, shape_.V, state_.values.data(), value_query.data());
  }

  const detail::State& absolute() const { return state_; }

 private:
  Shape shape_;
  std::vector<double> table_;
  detail::State state_;
};

template <class Memory>
Outputs run(const Inputs& in) {
  detail::check(in);
  const Shape& s = in.shape;
  Outputs out;
  out.o.resize(s.T * s.H * s.V);
  out.final_k.resize(s.N * s.H * s.K * s.M);
  out.final_v.resize(s.N * s.H * s.M * s.V);
  out.final_clock.resize(s.N * s.H);
  for (int64_t n = 0; n < s.N; ++n) {
    for (int64_t h = 0; h < s.H; ++h) {
      Memory memory(in, h, detail::initial_state(in, n, h));
      for (int64_t t = in.offsets[n]; t < in.offsets[n + 1]; ++t) {
        const std::vector<double> o = memory.step(detail::token_at(in, t, h));
        std::copy(o.begin(), o.end(), out.o.begin() + (t * s.H + h) * s.V);
      }
      const detail::State last = memory.absolute();
      const int64_t pair = n * s.H + h;
      const std::vector<double> stored_keys = detail::transposed(s.M, s.K, last.keys.data());
      std::copy(stored_keys.begin(), stored_keys.end(), out.final_k.begin() + pair * s.K * s.M);
      std::copy(last.values.begin(), last.values.end(), out.final_v.begin() + pair * s.M * s.V);
      out.final_clock[pair] = last.clock;
    }
  }
  return out;
}

}  // namespace

Outputs forward_physical(const Inputs& in) { return run<PhysicalMemory>(in); }
Outputs forward_fourier(const Inputs& in) { return run<FourierMemory>(in); }
Outputs forward_absolute(const Inputs& in) { return run<AbsoluteMemory>(in); }

std::vector<double> real_fourier_basis(int64_t m) {
  const double period = static_cast<double>(m);
  std::vector<double> basis(m * m);
  for (int64_t r = 0; r < m; ++r) {
    basis[r * m] = std::sqrt(1.0 / period);
    for (int64_t j = 1; j <= (m - 1) / 2; ++j) {
      const Phase at = phase(m, j, static_cast<double>(r));
      basis[r * m + 2 * j - 1] = std::sqrt(2.0 / period) * at.cosine;
      basis[r * m + 2 * j] = std::sqrt(2.0 / period) * at.sine;
    }
  }
  return basis;
}

std::vector<double> fractional_shift(int64_t m, double tau) {
  const std::vector<double> basis = real_fourier_basis(m);
  // Row r of Phi U(tau): the 2 x 2 blocks of U mix the cosine and sine columns of Phi.
  std::vector<double> rotated = basis;
  for (int64_t j = 1; j <= (m - 1) / 2; ++j) {
    const Phase at = phase(m, j, tau);
    for (int64_t r = 0; r < m; ++r) {
      const double cosine = basis[r * m + 2 * j - 1];
      const double sine = basis[r * m + 2 * j];
      rotated[r * m + 2 * j - 1] = cosine * at.cosine + sine * at.sine;
      rotated[r * m + 2 * j] = -cosine * at.sine + sine * at.cosine;
    }
  }
  std::vector<double> shift(m * m);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t s = 0; s < m; ++s) shift[r * m + s] = detail::dot(m, &rotated[r * m], &basis[s * m]);
  }
  return shift;
}

std::vector<double> temporal_write(int64_t M, double clock) {
  const int64_t m = M - 1;
  const double period = static_cast<double>(m);
  std::vector<double> write(M, 0.0);
  write[0] = std::sqrt(1.0 / period);
  for (int64_t j = 1; j < M / 2; ++j) {
    const Phase at = phase(m, j, clock);
    write[2 * j] = std::sqrt(2.0 / period) * at.cosine;
    write[2 * j + 1] = -std::sqrt(2.0 / period) * at.sine;
  }
  return write;
}

std::vector<double> readout_table(int64_t M, const double* readout) {
  const int64_t m = M - 1;
  const std::vector<double> basis = detail::stored_basis(M);
  std::vector<double> table(m * M, 0.0);
  for (int64_t s = 0; s < m; ++s) {
    const std::vector<double> row = detail::multiply_transposed(m, M, basis.data(), readout + s * m);
    std::copy(row.begin(), row.end(), table.begin() + s * M);
  }
  return table;
}

std::vector<double> relative_from_absolute(int64_t M, int64_t width, const double* state, double clock) {
  const int64_t m = M - 1;
  std::vector<double> rows(state, state + M * width);
  detail::rotate(M, width, clock, rows.data());
  const std::vector<double> basis = detail::stored_basis(M);
  std::vector<double> slots(m * width, 0.0);
  for (int64_t r = 0; r < m; ++r) {
    const std::vector<double> slot = detail::multiply_transposed(M, width, rows.data(), &basis[r * M]);
    std::copy(slot.begin(), slot.end(), slots.begin() + r * width);
  }
  return slots;
}

namespace detail {

void check(const Inputs& in) {
  const Shape& s = in.shape;
  if (s.N < 0 || s.T < 0 || s.H < 0 || s.K < 1 || s.V < 1) {
    throw std::invalid_argument("cyclic_flow: N, T and H must not be negative and K and V must be positive; came N " + std::to_string(s.N) +
                                ", T " + std::to_string(s.T) + ", H " + std::to_string(s.H) + ", K " + std::to_string(s.K) + ", V " +
                                std::to_string(s.V));
  }
  if (s.M < 2 || s.M % 2 != 0) {
    throw std::invalid_argument("cyclic_flow: M (stored slots) must be even and at least 2; came " + std::to_string(s.M));
  }
  if (in.offsets == nullptr || in.offsets[0] != 0 || in.offsets[s.N] != s.T || !std::is_sorted(in.offsets, in.offsets + s.N + 1)) {
    throw std::invalid_argument("cyclic_flow: offsets must be N + 1 numbers that start at 0, never decrease and end at T = " +
                                std::to_string(s.T));
  }
}

Token token_at(const Inputs& in, int64_t t, int64_t h) {
  const Shape& s = in.shape;
  const int64_t row = t * s.H + h;
  Token token;
  token.q = normalised(s.K, in.q + row * s.K, in.q_norm_weight, in.norm_eps);
  for (double& x : token.q) x *= in.scale;
  token.k = normalised(s.K, in.k + row * s.K, in.k_norm_weight, in.norm_eps);
  token.v = in.v + row * s.V;
  token.alpha = std::exp(in.log_alpha[row]);
  token.delta = in.delta[row];
  token.beta = in.beta[row];
  return token;
}

State initial_state(const Inputs& in, int64_t n, int64_t h) {
  const Shape& s = in.shape;
  const int64_t pair = n * s.H + h;
  State state;
  state.keys.assign(s.M * s.K, 0.0);
  state.values.assign(s.M * s.V, 0.0);
  if (in.initial_k != nullptr) state.keys = transposed(s.K, s.M, in.initial_k + pair * s.K * s.M);
  if (in.initial_v != nullptr) std::copy_n(in.initial_v + pair * s.M * s.V, s.M * s.V, state.values.begin());
  if (in.initial_clock != nullptr) state.clock = in.initial_clock[pair];
  return state;
}

std::vector<double> write_vector(const Shape& shape, const Token& token, double clock) {
  std::vector<double> write = temporal_write(shape.M, clock);
  for (double& x : write) x *= token.beta;
  return write;
}

void advance(const Shape& shape, const Token& token, State& state) {
  state.clock += token.delta;
  const std::vector<double> write = write_vector(shape, token, state.clock);
  for (double& x : state.keys) x *= token.alpha;
  for (double& x : state.values) x *= token.alpha;
  add_outer(shape.M, shape.K, write.data(), token.k.data(), state.keys.data());
  add_outer(shape.M, shape.V, write.data(), token.v, state.values.data());
}

void rotate(int64_t M, int64_t width, double tau, double* rows) {
  for (int64_t j = 1; j < M / 2; ++j) {
    const Phase at = phase(M - 1, j, tau);
    double* cosine_row = rows + 2 * j * width;
    double* sine_row = cosine_row + width;
    for (int64_t i = 0; i < width; ++i) {
      const double x = cosine_row[i];
      const double y = sine_row[i];
      cosine_row[i] = at.cosine * x - at.sine * y;
      sine_row[i] = at.sine * x + at.cosine * y;
    }
  }
}

std::vector<double> stored_basis(int64_t M) {
  const int64_t m = M - 1;
  const std::vector<double> basis = real_fourier_basis(m);
  std::vector<double> stored(m * M, 0.0);
  for (int64_t r = 0; r < m; ++r) {
    stored[r * M] = basis[r * m];
    for (int64_t column = 1; column < m; ++column) stored[r * M + column + 1] = basis[r * m + column];
  }
  return stored;
}

double inverse_rms(int64_t width, const double* x, double eps) {
  return 1.0 / std::sqrt(dot(width, x, x) / static_cast<double>(width) + eps);
}

std::vector<double> softmax(std::vector<double> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (double& x : logits) {
    x = std::exp(x - largest);
    sum += x;
  }
  for (double& x : logits) x /= sum;
  return logits;
}

std::vector<double> multiply(int64_t rows, int64_t columns, const double* matrix, const double* x) {
  std::vector<double> y(rows);
  for (int64_t r = 0; r < rows; ++r) y[r] = dot(columns, matrix + r * columns, x);
  return y;
}

std::vector<double> multiply_transposed(int64_t rows, int64_t columns, const double* matrix, const double* x) {
  std::vector<double> y(columns, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) y[c] += matrix[r * columns + c] * x[r];
  }
  return y;
}

std::vector<double> transposed(int64_t rows, int64_t columns, const double* matrix) {
  std::vector<double> result(rows * columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) result[c * rows + r] = matrix[r * columns + c];
  }
  return result;
}

void add_outer(int64_t rows, int64_t columns, const double* a, const double* b, double* matrix) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) matrix[r * columns + c] += a[r] * b[c];
  }
}

double dot(int64_t size, const double* a, const double* b) {
  double sum = 0.0;
  for (int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace detail
}  // namespace cyfa::cyclic_flow::reference
