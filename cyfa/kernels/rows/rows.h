// Row-wise pieces of the portable path on a CPU, each one sweep where a chain of tensor operations would take several.
// Rows are contiguous; `*_stride` is the distance between rows in elements. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

namespace cyfa::rows {

// rate = 1 / sqrt(mean(x^2) + eps), unit = x rate, out = unit weight. unit may be null.
void rms_norm(int64_t rows, int64_t width, const float* x, int64_t x_stride, const float* weight, float eps, float* rate, float* unit, float* out);

// In place on grad, the gradient of `out`: becomes that of x. Adds sum over rows of unit * grad to grad_weight [width].
void rms_norm_backward(int64_t rows, int64_t width, const float* unit, const float* rate, const float* weight, float* grad, float* grad_weight);

// out = <a, b> of each row.
void dot(int64_t rows, int64_t width, const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* out);

// out = sum over pairs j of rate[j] (x[2j + 1] grad[2j] - x[2j] grad[2j + 1]) of each row of 2 * pairs numbers.
void turn_dot(int64_t rows, int64_t pairs, const float* x, const float* grad, const float* rate, float* out);

// out [size, size] = sum[r] - sum[s] for r >= s, minus infinity for r < s, from sums in double.
void causal_differences(int64_t size, const double* sum, float* out);

// out = silu(gate) up, or silu(gate) where up is null, element by element: an element's result does not depend on where it stands.
void swiglu(int64_t count, const float* gate, const float* up, float* out);

// out = x * rate(x) * weight * sigmoid(gate), rate(x) = 1 / sqrt(mean(x^2) + eps), of each contiguous row.
void gated_rms_norm(int64_t rows, int64_t width, const float* x, const float* weight, float eps, const float* gate, float* out);

// One token of a causal depthwise convolution over `taps` tokens: y [width] from x [width] and the taps - 1 tokens before it, oldest first,
// state [taps - 1, width], which then moves on by one. weight [taps, width], newest token last; bias [width] or null.
void conv_step(int64_t width, int64_t taps, const float* x, const float* weight, const float* bias, float* state, float* y);

}  // namespace cyfa::rows
