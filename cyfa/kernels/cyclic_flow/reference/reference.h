// The definition of the cyclic_flow operator: a token loop in double precision that follows the paper. Every optimised path is tested
// against it, so it favours clarity over speed. Called by the `reference` backend, tests and analyses. Inputs are read-only; results are
// newly allocated vectors. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "cyfa/kernels/cyclic_flow/params.h"

namespace cyfa::cyclic_flow::reference {

// Row-major arrays owned by the caller. Sequence n holds tokens offsets[n] .. offsets[n + 1] - 1. If a norm weight is given, the head's row
// x becomes x / sqrt(mean(x^2) + norm_eps) * weight. The clock of a sequence's first write is initial_clock + delta of that token. The
// padding row of an initial state (row 1 of M) must be zero: the readout ignores it, but the Fourier and absolute forms would carry it
// along with the decay, while the relative-time form would drop it.
struct Inputs {
  Shape shape;
  const int64_t* offsets = nullptr;       // [N + 1], offsets[0] = 0, offsets[N] = T, non-decreasing
  const double* q = nullptr;              // [T, H, K]
  const double* k = nullptr;              // [T, H, K]
  const double* v = nullptr;              // [T, H, V]
  const double* log_alpha = nullptr;      // [T, H], at most 0
  const double* delta = nullptr;          // [T, H]
  const double* beta = nullptr;           // [T, H]
  const double* readout = nullptr;        // [H, m, m]
  const double* q_norm_weight = nullptr;  // [K]; null: q is not normalised
  const double* k_norm_weight = nullptr;  // [K]; null: k is not normalised
  const double* initial_k = nullptr;      // [N, H, K, M] in absolute-clock coordinates; null: zeros
  const double* initial_v = nullptr;      // [N, H, M, V]; null: zeros
  const double* initial_clock = nullptr;  // [N, H]; null: zeros
  double scale = 1.0;                     // dot-product scale, applied to q after its norm
  double norm_eps = 1e-6;
};

struct Outputs {
  std::vector<double> o;            // [T, H, V]
  std::vector<double> final_k;      // [N, H, K, M], absolute-clock coordinates
  std::vector<double> final_v;      // [N, H, M, V]
  std::vector<double> final_clock;  // [N, H]
};

// Incoming gradients; null means zero.
struct OutputGradients {
  const double* o = nullptr;
  const double* final_k = nullptr;
  const double* final_v = nullptr;
  const double* final_clock = nullptr;
};

// Outgoing gradients, with the shapes of the inputs of the same names. Gradients of the initial state are always computed, since the
// gradient at a zero state exists. Gradients of an absent norm weight are empty.
struct InputGradients {
  std::vector<double> q, k, v, log_alpha, delta, beta, readout, q_norm_weight, k_norm_weight, initial_k, initial_v, initial_clock;
};

// Relative-time slots: K_t = alpha P(delta) K_{t-1} + beta e_0 k^T (eq:cyfa-physical-recurrence, eq:cyfa-physical-readout). As in the other
// forms, initial and final states are in absolute-clock coordinates; they are converted on entry and exit.
Outputs forward_physical(const Inputs& in);

// Real-Fourier coordinates: the same shift as independent plane rotations (eq:cyfa-relative-fourier).
Outputs forward_fourier(const Inputs& in);

// Absolute-clock coordinates: scalar decay only (eq:cyfa-absolute-recurrence, eq:cyfa-absolute-readout).
Outputs forward_absolute(const Inputs& in);

// The hand-derived adjoint of forward_absolute. It never divides by alpha, which may be exactly 0.
InputGradients backward_absolute(const Inputs& in, const OutputGradients& grad);

// Building blocks, for tests and analyses. Matrices are row-major.

// Phi, m x m, columns DC, cos 1, sin 1, ... (eq:app-real-fourier).
std::vector<double> real_fourier_basis(int64_t m);

// P(tau) = Phi U(tau) Phi^T, m x m (eq:cyfa-fractional-shift).
std::vector<double> fractional_shift(int64_t m, double tau);

// U(-clock) b in stored order, length M (eq:cyfa-absolute-recurrence).
std::vector<double> temporal_write(int64_t M, double clock);

// R Phi with columns in stored order, m x M; column 1 is zero.
std::vector<double> readout_table(int64_t M, const double* readout);

// Phi U(clock) S: m x width from M x width (eq:cyfa-relative-reconstruction).
std::vector<double> relative_from_absolute(int64_t M, int64_t width, const double* state, double clock);

}  // namespace cyfa::cyclic_flow::reference
