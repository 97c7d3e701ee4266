// Row-wise pieces of the portable path on a CPU, each one sweep where a chain of tensor operations would take several.
// Rows are contiguous; `*_stride` is the distance between rows in elements. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

namespace cyfa::rowwise {

// rate = 1 / sqrt(mean(x^2) + eps), unit = x rate, out = unit weight. unit may be null.
void rms_norm(int64_t rows, int64_t width, const float* x, int64_t x_stride, const float* weight, float eps, float* rate, float* unit,
              float* out);

// In place on grad, the gradient of `out`: becomes that of x. Adds sum over rows of unit * grad to grad_weight [width].
void rms_norm_backward(int64_t rows, int64_t width, const float* unit, const float* rate, const float* weight, float* grad,
                       float* grad_weight);

// out = <a, b> of each row.
void dot(int64_t rows, int64_t width, const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* out);

// out = sum over pairs j of rate[j] (x[2j + 1] grad[2j] - x[2j] grad[2j + 1]) of each row of 2 * pairs numbers.
void turn_dot(int64_t rows, int64_t pairs, const float* x, const float* grad, const float* rate, float* out);

// out [size, size] = sum[r] - sum[s] for r >= s, minus infinity for r < s, from sums in double.
void causal_differences(int64_t size, const double* sum, float* out);

// out = silu(gate) up, or silu(gate) where up is null, element by element: an element's result does not depend on where it stands.
void swiglu(int64_t count, const float* gate, const float* up, float* out);

// The gradients of gate and, where there is one, of up.
void swiglu_backward(int64_t count, const float* gate, const float* up, const float* grad, float* grad_gate, float* grad_up);

// out = x * rate(x) * weight * sigmoid(gate), rate(x) = 1 / sqrt(mean(x^2) + eps), of each contiguous row. rate may be null.
void gated_rms_norm(int64_t rows, int64_t width, const float* x, const float* weight, float eps, const float* gate, float* rate,
                    float* out);

// From the gradient of rms_norm's or gated_rms_norm's result (gate and grad_gate null: the former) those of x and gate; adds the sum over
// rows of weight's to grad_weight [width].
void norm_backward(int64_t rows, int64_t width, const float* x, const float* rate, const float* weight, const float* gate,
                   const float* grad, float* grad_x, float* grad_gate, float* grad_weight);

// A causal depthwise convolution over `taps` tokens. Rows [width]; weight [taps, width], the newest token's tap last; `before` holds the
// taps - 1 rows before x, oldest first.
void conv(int64_t tokens, int64_t width, int64_t taps, const float* before, const float* x, const float* weight, const float* bias,
          float* y);

// grad_x [tokens] of rows whose outputs have the gradients grad [tokens + after]: later outputs of the sequence come behind them.
void conv_backward(int64_t tokens, int64_t after, int64_t width, int64_t taps, const float* grad, const float* weight, float* grad_x);

// grad_before [taps - 1] of the rows before a sequence of `tokens` tokens.
void conv_backward_before(int64_t tokens, int64_t width, int64_t taps, const float* grad, const float* weight, float* grad_before);

// Adds to grad_weight [taps, width] and, unless it is null, to grad_bias [width].
void conv_backward_weight(int64_t tokens, int64_t width, int64_t taps, const float* before, const float* x, const float* grad,
                          float* grad_weight, float* grad_bias);

// One token of it: y [width] from x [width] and the taps - 1 tokens before it, state [taps - 1, width], which then moves on by one.
void conv_step(int64_t width, int64_t taps, const float* x, const float* weight, const float* bias, float* state, float* y);

}  // namespace cyfa::rowwise
