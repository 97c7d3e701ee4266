// backward_absolute: the hand-derived adjoint of forward_absolute (eq:cyfa-absolute-recurrence, eq:cyfa-absolute-readout); docs/operator.md
// has the derivation. Each head of each sequence is processed in reverse with the adjoints of both states and of the clock. Forward states
// are checkpointed every kSegment tokens and recomputed inside a segment, so the gate gradient alpha <dS_t, S_{t-1}> uses the true S_{t-1}
// and nothing is divided by alpha. Called by tests and the `reference` backend. Allocates its results and overwrites nothing else.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "cyfa/kernels/cyclic_flow/reference/reference.h"
#include "cyfa/kernels/cyclic_flow/reference/reference_detail.h"

namespace cyfa::cyclic_flow::reference {
namespace {

constexpr int64_t kSegment = 64;

// <gradient, d(U(tau) x)/dtau>. The derivative of U(tau) x is a quarter turn of each rotated pair j times 2 pi j / m.
double rotation_slope(int64_t M, const double* rotated, const double* gradient) {
  const double turn = 2.0 * std::numbers::pi / static_cast<double>(M - 1);
  double sum = 0.0;
  for (int64_t j = 1; j < M / 2; ++j) {
    const double quarter = gradient[2 * j + 1] * rotated[2 * j] - gradient[2 * j] * rotated[2 * j + 1];
    sum += turn * static_cast<double>(j) * quarter;
  }
  return sum;
}

// Adjoint of y = x / rms(x) * weight, or of y = x if weight is null. Writes dx and accumulates into dweight.
void norm_backward(int64_t width, const double* x, const double* weight, double eps, const double* dy, double* dx, double* dweight) {
  if (weight == nullptr) {
    std::copy_n(dy, width, dx);
    return;
  }
  const double inverse = detail::inverse_rms(width, x, eps);
  double along = 0.0;
  for (int64_t i = 0; i < width; ++i) along += weight[i] * dy[i] * x[i];
  along *= inverse * inverse / static_cast<double>(width);
  for (int64_t i = 0; i < width; ++i) {
    dx[i] = inverse * (weight[i] * dy[i] - x[i] * along);
    dweight[i] += dy[i] * x[i] * inverse;
  }
}

class HeadBackward {
 public:
  // Accumulates into d_table [m, M] and into the norm weights' gradients of `out`; writes the other gradients of `out`.
  HeadBackward(const Inputs& in, const OutputGradients& grad, int64_t n, int64_t h, const double* table, double* d_table,
               InputGradients& out)
      : in_(in), grad_(grad), shape_(in.shape), pair_(n * shape_.H + h), n_(n), h_(h), table_(table), d_table_(d_table), out_(out) {}

  void run() {
    const int64_t begin = in_.offsets[n_];
    const int64_t end = in_.offsets[n_ + 1];
    std::vector<detail::State> kept;
    detail::State state = detail::initial_state(in_, n_, h_);
    for (int64_t t = begin; t < end; ++t) {
      if ((t - begin) % kSegment == 0) kept.push_back(state);
      detail::advance(shape_, detail::token_at(in_, t, h_), state);
    }

    start_from_final_gradients();
    for (int64_t segment = static_cast<int64_t>(kept.size()) - 1; segment >= 0; --segment) {
      const int64_t first = begin + segment * kSegment;
      const int64_t last = std::min(first + kSegment, end);
      std::vector<detail::State> states{kept[segment]};
      for (int64_t t = first; t < last; ++t) {
        states.push_back(states.back());
        detail::advance(shape_, detail::token_at(in_, t, h_), states.back());
      }
      for (int64_t t = last - 1; t >= first; --t) token_backward(t, states[t - first], states[t - first + 1]);
    }
    store_initial_gradients();
  }

 private:
  void start_from_final_gradients() {
    d_keys_.assign(shape_.M * shape_.K, 0.0);
    d_values_.assign(shape_.M * shape_.V, 0.0);
    if (grad_.final_k != nullptr) d_keys_ = detail::transposed(shape_.K, shape_.M, grad_.final_k + pair_ * shape_.K * shape_.M);
    if (grad_.final_v != nullptr) std::copy_n(grad_.final_v + pair_ * shape_.M * shape_.V, shape_.M * shape_.V, d_values_.begin());
    if (grad_.final_clock != nullptr) d_clock_ = grad_.final_clock[pair_];
  }

  // On entry d_keys_, d_values_ and d_clock_ are the adjoints of the state after token t with respect to later tokens and the final state.
  // On return they are the adjoints of the state before token t.
  void token_backward(int64_t t, const detail::State& before, const detail::State& after) {
    const int64_t M = shape_.M;
    const int64_t row = t * shape_.H + h_;
    const detail::Token token = detail::token_at(in_, t, h_);
    std::vector<double> d_q(shape_.K, 0.0);
    if (grad_.o != nullptr) readout_backward(token, after, grad_.o + row * shape_.V, d_q);

    // S_t = alpha S_{t-1} + write x^T, write = beta U(-clock) b.
    const std::vector<double> direction = temporal_write(M, after.clock);
    const std::vector<double> write = detail::write_vector(shape_, token, after.clock);
    const std::vector<double> d_k = detail::multiply_transposed(M, shape_.K, d_keys_.data(), write.data());
    const std::vector<double> d_v = detail::multiply_transposed(M, shape_.V, d_values_.data(), write.data());
    std::vector<double> d_write = detail::multiply(M, shape_.K, d_keys_.data(), token.k.data());
    const std::vector<double> d_write_of_values = detail::multiply(M, shape_.V, d_values_.data(), token.v);
    for (int64_t i = 0; i < M; ++i) d_write[i] += d_write_of_values[i];
    out_.beta[row] = detail::dot(M, direction.data(), d_write.data());
    d_clock_ -= rotation_slope(M, write.data(), d_write.data());
    out_.log_alpha[row] = token.alpha * (detail::dot(M * shape_.K, d_keys_.data(), before.keys.data()) +
                                         detail::dot(M * shape_.V, d_values_.data(), before.values.data()));
    for (double& x : d_keys_) x *= token.alpha;
    for (double& x : d_values_) x *= token.alpha;

    // clock_t = clock_{t-1} + delta_t
    out_.delta[row] = d_clock_;

    std::copy(d_v.begin(), d_v.end(), out_.v.begin() + row * shape_.V);
    for (double& x : d_q) x *= in_.scale;
    norm_backward(shape_.K, in_.q + row * shape_.K, in_.q_norm_weight, in_.norm_eps, d_q.data(), &out_.q[row * shape_.K],
                  out_.q_norm_weight.data());
    norm_backward(shape_.K, in_.k + row * shape_.K, in_.k_norm_weight, in_.norm_eps, d_k.data(), &out_.k[row * shape_.K],
                  out_.k_norm_weight.data());
  }

  // o = V^T u, u = U(-clock) A^T p, p = softmax(A rotated), rotated = U(clock) scores, scores = K q.
  void readout_backward(const detail::Token& token, const detail::State& state, const double* d_o, std::vector<double>& d_q) {
    const int64_t m = shape_.m();
    const int64_t M = shape_.M;
    std::vector<double> rotated = detail::multiply(M, shape_.K, state.keys.data(), token.q.data());
    detail::rotate(M, 1, state.clock, rotated.data());
    const std::vector<double> p = detail::softmax(detail::multiply(m, M, table_, rotated.data()));
    std::vector<double> u = detail::multiply_transposed(m, M, table_, p.data());
    detail::rotate(M, 1, -state.clock, u.data());

    detail::add_outer(M, shape_.V, u.data(), d_o, d_values_.data());
    const std::vector<double> d_u = detail::multiply(M, shape_.V, state.values.data(), d_o);
    d_clock_ -= rotation_slope(M, u.data(), d_u.data());
    std::vector<double> d_mixture = d_u;  // adjoint of A^T p
    detail::rotate(M, 1, state.clock, d_mixture.data());
    detail::add_outer(m, M, p.data(), d_mixture.data(), d_table_);

    std::vector<double> d_logits = detail::multiply(m, M, table_, d_mixture.data());
    const double mean = detail::dot(m, p.data(), d_logits.data());
    for (int64_t s = 0; s < m; ++s) d_logits[s] = p[s] * (d_logits[s] - mean);
    detail::add_outer(m, M, d_logits.data(), rotated.data(), d_table_);

    std::vector<double> d_scores = detail::multiply_transposed(m, M, table_, d_logits.data());  // adjoint of `rotated`; rotated back below
    d_clock_ += rotation_slope(M, rotated.data(), d_scores.data());
    detail::rotate(M, 1, -state.clock, d_scores.data());
    detail::add_outer(M, shape_.K, d_scores.data(), token.q.data(), d_keys_.data());
    d_q = detail::multiply_transposed(M, shape_.K, state.keys.data(), d_scores.data());
  }

  void store_initial_gradients() {
    const std::vector<double> stored_keys = detail::transposed(shape_.M, shape_.K, d_keys_.data());
    std::copy(stored_keys.begin(), stored_keys.end(), out_.initial_k.begin() + pair_ * shape_.K * shape_.M);
    std::copy(d_values_.begin(), d_values_.end(), out_.initial_v.begin() + pair_ * shape_.M * shape_.V);
    out_.initial_clock[pair_] = d_clock_;
  }

  const Inputs& in_;
  const OutputGradients& grad_;
  const Shape shape_;
  const int64_t pair_;
  const int64_t n_;
  const int64_t h_;
  const double* table_;
  double* d_table_;
  InputGradients& out_;
  std::vector<double> d_keys_;    // [M, K]
  std::vector<double> d_values_;  // [M, V]
  double d_clock_ = 0.0;
};

}  // namespace

InputGradients backward_absolute(const Inputs& in, const OutputGradients& grad) {
  detail::check(in);
  const Shape& s = in.shape;
  const int64_t m = s.m();
  InputGradients out;
  out.q.resize(s.T * s.H * s.K);
  out.k.resize(s.T * s.H * s.K);
  out.v.resize(s.T * s.H * s.V);
  out.log_alpha.resize(s.T * s.H);
  out.delta.resize(s.T * s.H);
  out.beta.resize(s.T * s.H);
  out.readout.resize(s.H * m * m);
  if (in.q_norm_weight != nullptr) out.q_norm_weight.resize(s.K);
  if (in.k_norm_weight != nullptr) out.k_norm_weight.resize(s.K);
  out.initial_k.resize(s.N * s.H * s.K * s.M);
  out.initial_v.resize(s.N * s.H * s.M * s.V);
  out.initial_clock.resize(s.N * s.H);

  const std::vector<double> basis = detail::stored_basis(s.M);
  for (int64_t h = 0; h < s.H; ++h) {
    const std::vector<double> table = readout_table(s.M, in.readout + h * m * m);
    std::vector<double> d_table(m * s.M, 0.0);
    for (int64_t n = 0; n < s.N; ++n) HeadBackward(in, grad, n, h, table.data(), d_table.data(), out).run();
    // A = R Phi, hence dR = dA Phi^T. The padding column of Phi is zero and contributes nothing.
    for (int64_t row = 0; row < m; ++row) {
      const std::vector<double> d_row = detail::multiply(m, s.M, basis.data(), &d_table[row * s.M]);
      std::copy(d_row.begin(), d_row.end(), out.readout.begin() + (h * m + row) * m);
    }
  }
  return out;
}

}  // namespace cyfa::cyclic_flow::reference
