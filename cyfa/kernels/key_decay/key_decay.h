// Decays with a gate for every key dimension, as the portable path on a CPU needs them: running products of alpha, never a quotient, so
// that gates of zero and gates that multiply to less than any number are as good as others. Matrices are [rows, width], contiguous, in
// fp32. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

namespace cyfa::key_decay {

// Stretches of consecutive rows: stretch i is rows i * period + offset .. + length - 1 of a whole matrix, and begins at row i *
// compact_period of a matrix that has little else.
struct Stretches {
  int64_t period, offset, length;
  int64_t compact_period;
};

// The most rows that the block_ functions take.
inline constexpr int64_t kMaxBlock = 16;

// out[t] = x[t] alpha[first] .. alpha[t] within each of stretches begin .. end - 1. x and alpha are whole matrices, out is the compact one.
void from_start(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out);
// out[t] = x[t] alpha[t + 1] .. alpha[last].
void to_end(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out);

// Their adjoints: grad, compact, is the gradient of `out`. Adds to grad_x and to grad_log, the gradient of log alpha, whole matrices.
// grad_x of from_start_backward may be null, and so may grad_log and out, which lies as grad does, together.
void from_start_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out,
                         const float* alpha, float* grad_x, float* grad_log);
void to_end_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out, const float* alpha,
                     float* grad_x, float* grad_log);

// One block of rows at x, y and alpha [size, width], and its [size, size] matrices whose rows lie `stride` apart. Write D for the products
// alpha[s + 1] .. alpha[t], one for each column:
// weights[t, s] = sum of x[t] D y[s] for s <= t; above the diagonal nothing is written.
void block_scores(int64_t size, int64_t width, const float* x, const float* y, const float* alpha, float* weights, int64_t stride);
// out[t] += sum over s <= t of weights[t, s] D y[s].
void block_apply(int64_t size, int64_t width, const float* weights, int64_t stride, const float* y, const float* alpha, float* out);
// The adjoint of block_scores for a gradient `weights` of it; adds. grad_x may be null, and may be grad_y.
void block_backward(int64_t size, int64_t width, const float* weights, int64_t stride, const float* x, const float* y, const float* alpha,
                    float* grad_x, float* grad_y, float* grad_log);

}  // namespace cyfa::key_decay
