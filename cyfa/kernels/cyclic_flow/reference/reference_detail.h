// Helpers shared by reference.cc and reference_backward.cc: one token's inputs after norms and gates, one head's absolute-clock state, and
// small dense linear algebra. Matrices are row-major. Inside the reference the key state is M x K (slots are rows, as in the paper); it is
// transposed from and to the stored K x M on entry and exit.
#pragma once

#include <cstdint>
#include <vector>

#include "cyfa/kernels/cyclic_flow/reference/reference.h"

namespace cyfa::cyclic_flow::reference::detail {

// Throws std::invalid_argument if the shape or the offsets are invalid.
void check(const Inputs& in);

struct Token {
  std::vector<double> q;      // [K], after norm and scale
  std::vector<double> k;      // [K], after norm
  const double* v = nullptr;  // [V]
  double alpha = 1.0;
  double delta = 0.0;
  double beta = 0.0;
};

Token token_at(const Inputs& in, int64_t t, int64_t h);

// Absolute-clock state of one head of one sequence.
struct State {
  std::vector<double> keys;    // [M, K]
  std::vector<double> values;  // [M, V]
  double clock = 0.0;
};

State initial_state(const Inputs& in, int64_t n, int64_t h);

// beta U(-clock) b: the vector over slots that a token writes into both states.
std::vector<double> write_vector(const Shape& shape, const Token& token, double clock);

// eq:cyfa-cumulative-clock, then eq:cyfa-absolute-recurrence.
void advance(const Shape& shape, const Token& token, State& state);

// rows <- U(tau) rows for an M x width matrix in stored order; pair 0 (DC, padding) is left unchanged.
void rotate(int64_t M, int64_t width, double tau, double* rows);

// Phi with columns in stored order: m x M, column 1 is zero.
std::vector<double> stored_basis(int64_t M);

// 1 / sqrt(mean(x^2) + eps).
double inverse_rms(int64_t width, const double* x, double eps);

std::vector<double> softmax(std::vector<double> logits);

std::vector<double> multiply(int64_t rows, int64_t columns, const double* matrix, const double* x);             // matrix x
std::vector<double> multiply_transposed(int64_t rows, int64_t columns, const double* matrix, const double* x);  // matrix^T x
std::vector<double> transposed(int64_t rows, int64_t columns, const double* matrix);
void add_outer(int64_t rows, int64_t columns, const double* a, const double* b, double* matrix);  // matrix += a b^T
double dot(int64_t size, const double* a, const double* b);

}  // namespace cyfa::cyclic_flow::reference::detail
