// Reference of the linear attention recurrences in the paper's Table 1: a token loop in double precision and its adjoint. No torch. Called
// by the reference backend of ops/recurrence and by tests. Inputs are not changed.
//   S' = gated S_{t-1};  u_t = v_t, or beta_t (v_t - S'^T k_t) for the delta rules;  S_t = S' + k_t u_t^T;  o_t = S_t^T (scale q_t)
// The state S is [K, V]. The gate is one number per head, one per row of S (key dimension) or one per column (value dimension). A scalar
// gate commutes with I - beta k k^T, so the order of the two in ScalarGatedDeltaRule does not matter.
#pragma once

#include <cstdint>
#include <vector>

namespace cyfa::recurrence {

// What a token's forget gate scales separately: nothing, the whole state, each row [K], each column [V].
enum class Gate { kNone, kScalar, kRow, kColumn };

namespace reference {

// N packed sequences of T tokens together. Arrays are contiguous and owned by the caller.
struct Inputs {
  int64_t N = 0, T = 0, H = 0, K = 0, V = 0;
  const int64_t* offsets = nullptr;  // [N + 1], from 0 to T, never decreasing
  const double* q = nullptr;         // [T, H, K]
  const double* k = nullptr;         // [T, H, K]
  const double* v = nullptr;         // [T, H, V]
  Gate gate = Gate::kNone;
  const double* log_alpha = nullptr;      // [T, H], [T, H, K] or [T, H, V] as the gate says, at most 0; null for kNone
  const double* beta = nullptr;           // [T, H]; null: no delta rule
  const double* initial_state = nullptr;  // [N, H, K, V]; null: zeros
  double scale = 1.0;

  int64_t gates() const;  // gates per token and head: 0, 1, K or V
};

struct Outputs {
  std::vector<double> o;            // [T, H, V]
  std::vector<double> final_state;  // [N, H, K, V]
};

// Gradients in the shapes of the inputs. log_alpha and beta are empty if there is no such input; initial_state is always computed.
struct InputGradients {
  std::vector<double> q, k, v, log_alpha, beta, initial_state;
};

// Both functions throw std::invalid_argument for impossible sizes or offsets, or if log_alpha does not match the gate.
Outputs forward(const Inputs& in);

// grad_o [T, H, V] and grad_final_state [N, H, K, V] may be null, which means zero.
InputGradients backward(const Inputs& in, const double* grad_o, const double* grad_final_state);

}  // namespace reference
}  // namespace cyfa::recurrence
