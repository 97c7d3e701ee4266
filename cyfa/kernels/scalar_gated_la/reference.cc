// Scalar-decay linear attention (ScalarGatedLA of the paper's Table 1) token by token in double precision, and its adjoint:
//   S_t = alpha_t S_{t-1} + k_t v_t^T,  o_t = S_t^T (scale q_t);
//   dS_t = alpha_{t+1} dS_{t+1} + scale q_t do_t^T,  dq_t = scale S_t do_t,  dk_t = dS_t v_t,  dv_t = dS_t^T k_t,
//   dlog_alpha_t = alpha_t <dS_t, S_{t-1}>, where the true S_{t-1} is at hand and nothing is divided by alpha.
#include "cyfa/kernels/scalar_gated_la/reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace cyfa::scalar_gated_la::reference {
namespace {

// The backward walk keeps every kSegment-th state of the forward walk and rebuilds the ones between.
constexpr int64_t kSegment = 64;

void check(const Inputs& in) {
  if (in.N < 0 || in.T < 0 || in.H < 0 || in.K < 1 || in.V < 1) {
    throw std::invalid_argument("scalar_gated_la: N, T and H must not be negative and K and V must be positive; came N " +
                                std::to_string(in.N) + ", T " + std::to_string(in.T) + ", H " + std::to_string(in.H) + ", K " +
                                std::to_string(in.K) + ", V " + std::to_string(in.V));
  }
  if (in.offsets == nullptr || in.offsets[0] != 0 || in.offsets[in.N] != in.T ||
      !std::is_sorted(in.offsets, in.offsets + in.N + 1)) {
    throw std::invalid_argument("scalar_gated_la: offsets must be N + 1 numbers that start at 0, never decrease and end at T = " +
                                std::to_string(in.T));
  }
}

std::vector<double> initial_state(const Inputs& in, int64_t pair) {
  std::vector<double> state(in.K * in.V, 0.0);
  if (in.initial_state != nullptr) std::copy_n(in.initial_state + pair * in.K * in.V, in.K * in.V, state.begin());
  return state;
}

void advance(const Inputs& in, int64_t row, std::vector<double>& state) {
  const double alpha = std::exp(in.log_alpha[row]);
  for (int64_t i = 0; i < in.K; ++i) {
    for (int64_t j = 0; j < in.V; ++j) {
      double& entry = state[i * in.V + j];
      entry = alpha * entry + in.k[row * in.K + i] * in.v[row * in.V + j];
    }
  }
}

// On entry d_state is the adjoint of S_t as the later tokens and the final state see it; on return that of S_{t-1}.
void token_backward(const Inputs& in, int64_t row, const double* d_o, const std::vector<double>& before,
                    const std::vector<double>& after, std::vector<double>& d_state, InputGradients& out) {
  const double* q = in.q + row * in.K;
  const double* k = in.k + row * in.K;
  const double* v = in.v + row * in.V;
  if (d_o != nullptr) {
    for (int64_t i = 0; i < in.K; ++i) {
      for (int64_t j = 0; j < in.V; ++j) {
        out.q[row * in.K + i] += in.scale * after[i * in.V + j] * d_o[j];
        d_state[i * in.V + j] += in.scale * q[i] * d_o[j];
      }
    }
  }
  const double alpha = std::exp(in.log_alpha[row]);
  double carried = 0.0;
  for (int64_t i = 0; i < in.K; ++i) {
    for (int64_t j = 0; j < in.V; ++j) {
      double& adjoint = d_state[i * in.V + j];
      out.k[row * in.K + i] += adjoint * v[j];
      out.v[row * in.V + j] += adjoint * k[i];
      carried += adjoint * before[i * in.V + j];
      adjoint *= alpha;
    }
  }
  out.log_alpha[row] = alpha * carried;
}

}  // namespace

Outputs forward(const Inputs& in) {
  check(in);
  Outputs out;
  out.o.assign(in.T * in.H * in.V, 0.0);
  out.final_state.resize(in.N * in.H * in.K * in.V);
  for (int64_t n = 0; n < in.N; ++n) {
    for (int64_t h = 0; h < in.H; ++h) {
      const int64_t pair = n * in.H + h;
      std::vector<double> state = initial_state(in, pair);
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
  out.log_alpha.assign(in.T * in.H, 0.0);
  out.initial_state.resize(in.N * in.H * state_size);
  for (int64_t n = 0; n < in.N; ++n) {
    for (int64_t h = 0; h < in.H; ++h) {
      const int64_t pair = n * in.H + h;
      const int64_t begin = in.offsets[n];
      const int64_t end = in.offsets[n + 1];
      std::vector<std::vector<double>> kept;
      std::vector<double> state = initial_state(in, pair);
      for (int64_t t = begin; t < end; ++t) {
        if ((t - begin) % kSegment == 0) kept.push_back(state);
        advance(in, t * in.H + h, state);
      }

      std::vector<double> d_state(state_size, 0.0);
      if (grad_final_state != nullptr) std::copy_n(grad_final_state + pair * state_size, state_size, d_state.begin());
      for (int64_t segment = static_cast<int64_t>(kept.size()) - 1; segment >= 0; --segment) {
        const int64_t first = begin + segment * kSegment;
        const int64_t last = std::min(first + kSegment, end);
        std::vector<std::vector<double>> states{kept[segment]};
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

}  // namespace cyfa::scalar_gated_la::reference
