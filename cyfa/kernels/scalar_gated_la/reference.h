// The definition of scalar-decay linear attention (ScalarGatedLA of the paper's Table 1): S_t = alpha_t S_{t-1} + k_t v_t^T,
// o_t = S_t^T (scale q_t). A token loop in double precision and its adjoint. No torch.
#pragma once

#include <cstdint>
#include <vector>

namespace cyfa::scalar_gated_la::reference {

struct Inputs {
  int64_t N = 0, T = 0, H = 0, K = 0, V = 0;
  const int64_t* offsets = nullptr;        // [N + 1]
  const double* q = nullptr;               // [T, H, K]
  const double* k = nullptr;               // [T, H, K]
  const double* v = nullptr;               // [T, H, V]
  const double* log_alpha = nullptr;       // [T, H], at most 0
  const double* initial_state = nullptr;   // [N, H, K, V]; null: zeros
  double scale = 1.0;
};

struct Outputs {
  std::vector<double> o;            // [T, H, V]
  std::vector<double> final_state;  // [N, H, K, V]
};

struct InputGradients {
  std::vector<double> q, k, v, log_alpha, initial_state;
};

Outputs forward(const Inputs& in);

// grad_o [T, H, V] and grad_final_state [N, H, K, V]; null means zero.
InputGradients backward(const Inputs& in, const double* grad_o, const double* grad_final_state);

}  // namespace cyfa::scalar_gated_la::reference
