// The element-wise parts of a chunk of cyclic_flow on a CPU: phases, rotations, softmax, decay factors, and copies from and to the caller's
// rows. Called by cpu_chunks.cc and cpu_chunks_backward.cc between their matrix products. Arrays are contiguous, [rows, width] unless said
// otherwise, and written only where not const. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

namespace cyfa::cyclic_flow {

// Rows of numbers of the caller, `stride` elements apart, in fp32 or bf16.
struct TokenRows {
  const void* data = nullptr;
  int64_t stride = 0;
  bool bf16 = false;
};
struct TokenRowsOut {
  void* data = nullptr;
  int64_t stride = 0;
  bool bf16 = false;
};

namespace chunk {

// Rows first .. first + rows - 1 as fp32, and back, rounded to the nearest bf16 (ties to even).
void load_rows(const TokenRows& from, int64_t first, int64_t rows, int64_t width, float* to);
void store_rows(const TokenRowsOut& to, int64_t first, int64_t rows, int64_t width, const float* from);

// to[r] = factor[r] from[r]. to may be from.
void scale_rows(int64_t rows, int64_t width, const float* factor, const float* from, float* to);
void scale(int64_t count, float factor, float* x);
void add(int64_t count, const float* x, float* to);
double dot(int64_t count, const float* a, const float* b);

// The factors of the chunk-wise form (docs/operator.md), from the log_alpha of its tokens.
struct Decay {
  float* from_start;  // [n] a
  float* to_end;      // [n] b
  float* between;     // [n, n] D, zero above the diagonal
  float whole;        // gamma
};
// D only if `pairs`. Sums are in double; `sums` [n] is scratch.
void decay_factors(int64_t n, const double* log_alpha, bool pairs, double* sums, Decay& decay);

// trig[t, 2j], trig[t, 2j + 1] = cos, sin of 2 pi j clock[t] / m, for j < M / 2. Angles and their multiples are computed in double, from
// the clock modulo m, so that a clock of a million is as exact as one of one.
void phases(int64_t n, int64_t M, const double* clock, float* trig);
// U(-clock) b [n, M], and the same times beta (eq:app-temporal-writes).
void write_vectors(int64_t n, int64_t M, const float* trig, const float* beta, float* addresses, float* writes);
// Rotates the pairs of x by U(clock), and by U(-clock), in place.
void rotate(int64_t n, int64_t M, const float* trig, float* x);
void rotate_back(int64_t n, int64_t M, const float* trig, float* x);

// Softmax over the first M - 1 columns, in place; the last column becomes zero.
void softmax(int64_t n, int64_t M, float* x);
// In place: grad is the gradient of the probabilities on entry and that of the logits on return.
void softmax_backward(int64_t n, int64_t M, const float* probs, float* grad);

// Multiplies the lower triangle of x [n, n] by D and clears the rest, which may hold anything.
void apply_decay(int64_t n, const float* between, float* x);
// The same for x and its gradient grad; pairs [n, n] below the diagonal gets, or with `add` receives in addition, x D grad: what each pair
// of tokens contributes to the gradients of the gates between them.
void apply_decay_backward(int64_t n, const float* between, float* x, float* grad, float* pairs, bool add);

// The gradient of log_alpha [n]. Gate s collects pairs (t, i) with i < s <= t; from_start[t], t >= s, of tokens that read the chunk's first
// state; to_end[i], i < s, of tokens in its last state; and `whole`, of the first state in the last one. `sums` [n] is scratch.
void gate_gradient(int64_t n, const float* pairs, const float* from_start, const float* to_end, double whole, float* sums, float* grad);

}  // namespace chunk
}  // namespace cyfa::cyclic_flow
