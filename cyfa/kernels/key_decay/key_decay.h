// Decay factors of recurrences with one forget gate per key dimension, on a CPU: the inner loops of PerKeyDecay in ops/recurrence, which is
// the only caller. All of them are running products of alpha and never quotients, so gates of exactly zero and products that underflow need
// no special case. Matrices are [rows, width], contiguous, fp32. Every function writes only to its `out`, `weights` or grad_* arguments
// that are not const. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

namespace cyfa::key_decay {

// Equal stretches of consecutive rows. Stretch i is rows i * period + offset .. i * period + offset + length - 1 of a full matrix, and
// starts at row i * compact_period of a compact matrix, which need not hold the rows between the stretches.
struct Stretches {
  int64_t period, offset, length;
  int64_t compact_period;
};

// Largest number of rows for the block_ functions.
inline constexpr int64_t kMaxBlock = 16;

// out[t] = x[t] alpha[first] .. alpha[t] within each of stretches begin .. end - 1. x and alpha are full matrices, out is compact.
void from_start(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out);
// out[t] = x[t] alpha[t + 1] .. alpha[last] in the same layout.
void to_end(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out);

// The adjoints of from_start and to_end. grad and out, the forward result, are compact; the functions add to grad_x and to grad_log, the
// gradient of log alpha, which are full matrices. grad_log may be null, and then out may be null too. from_start_backward also allows
// grad_x to be null.
void from_start_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out,
                         const float* alpha, float* grad_x, float* grad_log);
void to_end_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out, const float* alpha,
                     float* grad_x, float* grad_log);

// The block_ functions work on one block of `size` rows of x, y and alpha [size, width], and on [size, size] matrices whose rows are
// `stride` apart. D denotes the products alpha[s + 1] .. alpha[t], one per column.
// weights[t, s] = sum over columns of x[t] D y[s], for s <= t; entries above the diagonal are not written.
void block_scores(int64_t size, int64_t width, const float* x, const float* y, const float* alpha, float* weights, int64_t stride);
// out[t] += sum over s <= t of weights[t, s] D y[s].
void block_apply(int64_t size, int64_t width, const float* weights, int64_t stride, const float* y, const float* alpha, float* out);
// The adjoint of block_scores; `weights` is the gradient of its result. Adds to grad_x, grad_y and grad_log. grad_x may be null or equal to
// grad_y.
void block_backward(int64_t size, int64_t width, const float* weights, int64_t stride, const float* x, const float* y, const float* alpha,
                    float* grad_x, float* grad_y, float* grad_log);

}  // namespace cyfa::key_decay
