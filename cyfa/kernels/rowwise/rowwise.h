// Row-wise functions of the portable path on a CPU: norms, SwiGLU, the short convolution and small reductions, each in one sweep where a
// chain of tensor operations would take several. Called by cyclic_flow/cpu and by ops/dense (rowwise.cc, portable_rowwise.cc,
// short_conv.cc), which splits the rows over threads. fp32; rows are contiguous, and `*_stride` is the distance between rows in elements.
// Functions write only to their non-const arguments. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

namespace cyfa::rowwise {

// RMSNorm: rate = 1 / sqrt(mean(x^2) + eps) [rows], unit = x rate, out = unit weight, [rows, width]. unit may be null.
void rms_norm(int64_t rows, int64_t width, const float* x, int64_t x_stride, const float* weight, float eps, float* rate, float* unit,
              float* out);

// In place: grad is the gradient of `out` on entry and that of x on return. Adds the sum over rows of unit * grad to grad_weight [width].
void rms_norm_backward(int64_t rows, int64_t width, const float* unit, const float* rate, const float* weight, float* grad,
                       float* grad_weight);

// out[r] = <a[r], b[r]>.
void dot(int64_t rows, int64_t width, const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* out);

// out[r] = sum over pairs j of rate[j] (x[2j + 1] grad[2j] - x[2j] grad[2j + 1]), over rows of 2 * pairs numbers: the derivative of
// <U(-tau) x, grad> at tau = 0 where pair j rotates at rate[j].
void turn_dot(int64_t rows, int64_t pairs, const float* x, const float* grad, const float* rate, float* out);

// out[r, s] = sum[r] - sum[s] for r >= s and minus infinity for r < s, [size, size]. Subtracts in double.
void causal_differences(int64_t size, const double* sum, float* out);

// out = silu(gate) up, or silu(gate) if up is null, element by element. The result of an element does not depend on its position.
void swiglu(int64_t count, const float* gate, const float* up, float* out);

// The gradients of gate and, if up is not null, of up.
void swiglu_backward(int64_t count, const float* gate, const float* up, const float* grad, float* grad_gate, float* grad_up);

// out = x * rate * weight * sigmoid(gate) with rate = 1 / sqrt(mean(x^2) + eps), for contiguous rows. rate [rows] may be null.
void gated_rms_norm(int64_t rows, int64_t width, const float* x, const float* weight, float eps, const float* gate, float* rate,
                    float* out);

// Backward of rms_norm (gate and grad_gate are null) and of gated_rms_norm: the gradients of x and of gate. Adds the weight's gradient,
// summed over rows, to grad_weight [width].
void norm_backward(int64_t rows, int64_t width, const float* x, const float* rate, const float* weight, const float* gate,
                   const float* grad, float* grad_x, float* grad_gate, float* grad_weight);

// Causal depthwise convolution over `taps` tokens. x and y are [tokens, width]; weight is [taps, width], the newest token's tap last; bias
// [width] may be null. `before` holds the taps - 1 rows that precede x, oldest first.
void conv(int64_t tokens, int64_t width, int64_t taps, const float* before, const float* x, const float* weight, const float* bias,
          float* y);

// grad_x [tokens, width] from grad [tokens + after, width], the gradients of the outputs of the same tokens and of the `after` tokens of
// the sequence that follow them.
void conv_backward(int64_t tokens, int64_t after, int64_t width, int64_t taps, const float* grad, const float* weight, float* grad_x);

// grad_before [taps - 1, width], the gradient of the rows before a sequence of `tokens` tokens.
void conv_backward_before(int64_t tokens, int64_t width, int64_t taps, const float* grad, const float* weight, float* grad_before);

// Adds to grad_weight [taps, width] and, unless null, to grad_bias [width].
void conv_backward_weight(int64_t tokens, int64_t width, int64_t taps, const float* before, const float* x, const float* grad,
                          float* grad_weight, float* grad_bias);

// One decode step of the convolution: y [width] from x [width] and state [taps - 1, width], the preceding tokens, oldest first. Shifts x
// into the state.
void conv_step(int64_t width, int64_t taps, const float* x, const float* weight, const float* bias, float* state, float* y);

}  // namespace cyfa::rowwise
