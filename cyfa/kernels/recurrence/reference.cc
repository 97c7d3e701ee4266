// The recurrence of reference.h token by token, and its adjoint. dS_t is the gradient of S_t from later tokens and the final state:
//   dS_t += scale q_t do_t^T,  dq_t = scale S_t do_t,  du_t = dS_t^T k_t,  dk_t = dS_t u_t,  dS' = dS_t
//   delta rules, e_t = v_t - S'^T k_t:  dbeta_t = <du_t, e_t>,  de_t = beta_t du_t,  dv_t = de_t,  dk_t -= S' de_t,  dS' -= k_t de_t^T
//   dlog_alpha = sum of S' dS' over the entries that the gate scales, dS_{t-1} = gated dS'.
// S_{t-1} itself is recomputed, so nothing is divided by a gate.
#include "cyfa/kernels/recurrence/reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace cyfa::recurrence::reference {
namespace {

using Matrix = std::vector<double>;  // [K, V]

// Activation checkpointing: backward keeps every kSegment-th state and recomputes the states between them.
constexpr int64_t kSegment = 64;

void check(const Inputs& in) {
  if (in.N < 0 || in.T < 0 || in.H < 0 || in.K < 1 || in.V < 1) {
    throw std::invalid_argument("recurrence: N, T and H must not be negative and K and V must be positive; came N " + std::to_string(in.N) +
                                ", T " + std::to_string(in.T) + ", H " + std::to_string(in.H) + ", K " + std::to_string(in.K) + ", V " +
                                std::to_string(in.V));
  }
  if (in.offsets == nullptr || in.offsets[0] != 0 || in.offsets[in.N] != in.T || !std::is_sorted(in.offsets, in.offsets + in.N + 1)) {
    throw std::invalid_argument("recurrence: offsets must be N + 1 numbers that start at 0, never decrease and end at T = " +
                                std::to_string(in.T));
  }
  if ((in.gate == Gate::kNone) != (in.log_alpha == nullptr) && in.T * in.H > 0) {
    throw std::invalid_argument("recurrence: log_alpha must be given for a gate, and for nothing else");
  }
}

Matrix initial_state(const Inputs& in, int64_t pair) {
  Matrix state(in.K * in.V, 0.0);
  if (in.initial_state != nullptr) std::copy_n(in.initial_state + pair * in.K * in.V, in.K * in.V, state.begin());
  return state;
}

// Index of the gate that scales entry (i, j) of the state.
int64_t gate_of(const Inputs& in, int64_t i, int64_t j) { return in.gate == Gate::kRow ? i : in.gate == Gate::kColumn ? j : 0; }

std::vector<double> gates_at(const Inputs& in, int64_t row) {
  std::vector<double> alpha(in.gates());
  for (int64_t g = 0; g < in.gates(); ++g) alpha[g] = std::exp(in.log_alpha[row * in.gates() + g]);
  return alpha;
}

// state = S', the state after token `row`'s gate.
void gated(const Inputs& in, int64_t row, Matrix& state) {
  if (in.gate == Gate::kNone) return;
  const std::vector<double> alpha = gates_at(in, row);
  for (int64_t i = 0; i < in.K; ++i) {
    for (int64_t j = 0; j < in.V; ++j) state[i * in.V + j] *= alpha[gate_of(in, i, j)];
  }
}

// The error e = v - S'^T k that the delta rules write, given state = S'.
std::vector<double> missing(const Inputs& in, int64_t row, const Matrix& state) {
  std::vector<double> e(in.v + row * in.V, in.v + (row + 1) * in.V);
  for (int64_t i = 0; i < in.K; ++i) {
    for (int64_t j = 0; j < in.V; ++j) e[j] -= state[i * in.V + j] * in.k[row * in.K + i];
  }
  return e;
}

// u, the value that the token writes under its key, given state = S'.
std::vector<double> written(const Inputs& in, int64_t row, const Matrix& state) {
  if (in.beta == nullptr) return {in.v + row * in.V, in.v + (row + 1) * in.V};
  std::vector<double> u = missing(in, row, state);
  for (double& x : u) x *= in.beta[row];
  return u;
}

// state: S_{t-1} on entry, S_t on return.
void advance(const Inputs& in, int64_t row, Matrix& state) {
  gated(in, row, state);
  const std::vector<double> u = written(in, row, state);
  for (int64_t i = 0; i < in.K; ++i) {
    for (int64_t j = 0; j < in.V; ++j) state[i * in.V + j] += in.k[row * in.K + i] * u[j];
  }
}

// On entry d_state is the gradient of S_t from later tokens and the final state, on return that of S_{t-1}. before and after are S_{t-1}
// and S_t. Adds to the token's rows of `out`.
void token_backward(const Inputs& in, int64_t row, const double* d_o, const Matrix& before, const Matrix& after, Matrix& d_state,
                    InputGradients& out) {
  const double* q = in.q + row * in.K;
  const double* k = in.k + row * in.K;
  if (d_o != nullptr) {
    for (int64_t i = 0; i < in.K; ++i) {
      for (int64_t j = 0; j < in.V; ++j) {
        out.q[row * in.K + i] += in.scale * after[i * in.V + j] * d_o[j];
        d_state[i * in.V + j] += in.scale * q[i] * d_o[j];
      }
    }
  }
  Matrix state = before;
  gated(in, row, state);
  const std::vector<double> u = written(in, row, state);
  std::vector<double> d_u(in.V, 0.0);
  for (int64_t i = 0; i < in.K; ++i) {
    for (int64_t j = 0; j < in.V; ++j) {
      out.k[row * in.K + i] += d_state[i * in.V + j] * u[j];
      d_u[j] += d_state[i * in.V + j] * k[i];
    }
  }
  if (in.beta != nullptr) {
    const std::vector<double> e = missing(in, row, state);
    for (int64_t j = 0; j < in.V; ++j) {
      out.beta[row] += d_u[j] * e[j];
      d_u[j] *= in.beta[row];
    }
    for (int64_t i = 0; i < in.K; ++i) {
      for (int64_t j = 0; j < in.V; ++j) {
        out.k[row * in.K + i] -= state[i * in.V + j] * d_u[j];
        d_state[i * in.V + j] -= k[i] * d_u[j];
      }
    }
  }
  std::copy(d_u.begin(), d_u.end(), out.v.begin() + row * in.V);
  if (in.gate != Gate::kNone) {
    for (int64_t i = 0; i < in.K; ++i) {
      for (int64_t j = 0; j < in.V; ++j) {
        out.log_alpha[row * in.gates() + gate_of(in, i, j)] += state[i * in.V + j] * d_state[i * in.V + j];
      }
    }
    gated(in, row, d_state);
  }
}

}  // namespace

int64_t Inputs::gates() const {
  switch (gate) {
    case Gate::kNone: return 0;
    case Gate::kScalar: return 1;
    case Gate::kRow: return K;
    case Gate::kColumn: return V;
  }
  return 0;
}

Outputs forward(const Inputs& in) {
  check(in);
  Outputs out;
  out.o.assign(in.T * in.H * in.V, 0.0);
  out.final_state.resize(in.N * in.H * in.K * in.V);
  for (int64_t n = 0; n < in.N; ++n) {
    for (int64_t h = 0; h < in.H; ++h) {
      const int64_t pair = n * in.H + h;
      Matrix state = initial_state(in, pair);
      for (int64_t t = in.offsets[n]; t < in.offsets[n + 1]; ++t) {
        const int64_t row = t * in.H + h;
        advance(in, row, state);
        for (int64_t i = 0; i < in.K; ++i) {
          for (int64_t j = 0; j < in.V; ++j) out.o[row * in.V + j] += in.scale * in.q[row * in.K + i] * state[i * in.V + j];
        }
      }
      std::copy(state.begin(), state.end(), out.final_state.begin() + pair * in.K * in.V);
    }
  }
  return out;
}

InputGradients backward(const Inputs& in, const double* grad_o, const double* grad_final_state) {
  check(in);
  const int64_t state_size = in.K * in.V;
  InputGradients out;
  out.q.assign(in.T * in.H * in.K, 0.0);
  out.k.assign(in.T * in.H * in.K, 0.0);
  out.v.assign(in.T * in.H * in.V, 0.0);
  out.log_alpha.assign(in.T * in.H * in.gates(), 0.0);
  if (in.beta != nullptr) out.beta.assign(in.T * in.H, 0.0);
  out.initial_state.resize(in.N * in.H * state_size);
  for (int64_t n = 0; n < in.N; ++n) {
    for (int64_t h = 0; h < in.H; ++h) {
      const int64_t pair = n * in.H + h;
      const int64_t begin = in.offsets[n];
      const int64_t end = in.offsets[n + 1];
      std::vector<Matrix> kept;
      Matrix state = initial_state(in, pair);
      for (int64_t t = begin; t < end; ++t) {
        if ((t - begin) % kSegment == 0) kept.push_back(state);
        advance(in, t * in.H + h, state);
      }

      Matrix d_state(state_size, 0.0);
      if (grad_final_state != nullptr) std::copy_n(grad_final_state + pair * state_size, state_size, d_state.begin());
      for (int64_t segment = static_cast<int64_t>(kept.size()) - 1; segment >= 0; --segment) {
        const int64_t first = begin + segment * kSegment;
        const int64_t last = std::min(first + kSegment, end);
        std::vector<Matrix> states{kept[segment]};
        for (int64_t t = first; t < last; ++t) {
          states.push_back(states.back());
          advance(in, t * in.H + h, states.back());
        }
        for (int64_t t = last - 1; t >= first; --t) {
          const int64_t row = t * in.H + h;
          const double* d_o = grad_o == nullptr ? nullptr : grad_o + row * in.V;
          token_backward(in, row, d_o, states[t - first], states[t - first + 1], d_state, out);
        }
      }
      std::copy(d_state.begin(), d_state.end(), out.initial_state.begin() + pair * state_size);
    }
  }
  return out;
}

}  // namespace cyfa::recurrence::reference
