// See rowwise.h. Compiled for several x86-64 levels (CYFA_CLONES) and vectorised by `omp simd`.
#include "cyfa/kernels/rowwise/rowwise.h"

#include <cmath>
#include <limits>

#include "cyfa/kernels/cpu/clones.h"
#include "cyfa/kernels/rowwise/exp.h"

namespace cyfa::rowwise {

namespace {

inline float sigmoid(float x) {
  const float e = exp_of_negative(x < 0 ? x : -x);
  return (x < 0 ? e : 1.0F) / (1.0F + e);
}

}  // namespace

// Lower bound of the mean square: keeps the norm of an all-zero (padding) row finite if eps is 0.
constexpr float kSmallest = std::numeric_limits<float>::min();

CYFA_CLONES void rms_norm(int64_t rows, int64_t width, const float* x, int64_t x_stride, const float* weight, float eps, float* rate,
                          float* unit, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * x_stride;
    float* to = out + r * width;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += in[i] * in[i];
    const float mean = sum / static_cast<float>(width) + eps;
    const float scale = 1.0F / std::sqrt(mean > kSmallest ? mean : kSmallest);
    rate[r] = scale;
    if (unit == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) to[i] = in[i] * scale * weight[i];
    } else {
      float* u = unit + r * width;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        u[i] = in[i] * scale;
        to[i] = u[i] * weight[i];
      }
    }
  }
}

CYFA_CLONES void rms_norm_backward(int64_t rows, int64_t width, const float* unit, const float* rate, const float* weight, float* grad,
                                   float* grad_weight) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* u = unit + r * width;
    float* g = grad + r * width;
    float along = 0;
#pragma omp simd reduction(+ : along)
    for (int64_t i = 0; i < width; ++i) {
      const float shared = u[i] * g[i];
      grad_weight[i] += shared;
      along += shared * weight[i];
    }
    along /= static_cast<float>(width);
    const float scale = rate[r];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) g[i] = (g[i] * weight[i] - u[i] * along) * scale;
  }
}

CYFA_CLONES void dot(int64_t rows, int64_t width, const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = a + r * a_stride;
    const float* y = b + r * b_stride;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += x[i] * y[i];
    out[r] = sum;
  }
}

CYFA_CLONES void turn_dot(int64_t rows, int64_t pairs, const float* x, const float* grad, const float* rate, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = x + r * 2 * pairs;
    const float* g = grad + r * 2 * pairs;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < pairs; ++j) sum += rate[j] * (a[2 * j + 1] * g[2 * j] - a[2 * j] * g[2 * j + 1]);
    out[r] = sum;
  }
}

CYFA_CLONES void causal_differences(int64_t size, const double* sum, float* out) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int64_t r = 0; r < size; ++r) {
    float* to = out + r * size;
#pragma omp simd
    for (int64_t s = 0; s <= r; ++s) to[s] = static_cast<float>(sum[r] - sum[s]);
    for (int64_t s = r + 1; s < size; ++s) to[s] = kNever;
  }
}

CYFA_CLONES void swiglu(int64_t count, const float* gate, const float* up, float* out) {
  if (up == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = gate[i] * sigmoid(gate[i]);
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

CYFA_CLONES void swiglu_backward(int64_t count, const float* gate, const float* up, const float* grad, float* grad_gate, float* grad_up) {
  if (up == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float s = sigmoid(gate[i]);
      grad_gate[i] = grad[i] * s * (1.0F + gate[i] * (1.0F - s));
    }
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float s = sigmoid(gate[i]);
    grad_gate[i] = grad[i] * up[i] * s * (1.0F + gate[i] * (1.0F - s));
    grad_up[i] = grad[i] * gate[i] * s;
  }
}

CYFA_CLONES void gated_rms_norm(int64_t rows, int64_t width, const float* x, const float* weight, float eps, const float* gate, float* rate,
                                float* out) {
  for (int64_t r = 0; r < rows; ++r, x += width, gate += width, out += width) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += x[i] * x[i];
    const float mean = sum / static_cast<float>(width) + eps;
    const float scale = 1.0F / std::sqrt(mean > kSmallest ? mean : kSmallest);
    if (rate != nullptr) rate[r] = scale;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] * scale * weight[i] * sigmoid(gate[i]);
  }
}

// With n = x rate, s = sigmoid(gate) and y = n weight s: dn = grad weight s, dx = rate (dn - n <n, dn> / width).
CYFA_CLONES void norm_backward(int64_t rows, int64_t width, const float* x, const float* rate, const float* weight, const float* gate,
                               const float* grad, float* grad_x, float* grad_gate, float* grad_weight) {
  for (int64_t r = 0; r < rows; ++r, x += width, grad += width, grad_x += width) {
    const float scale = rate[r];
    float along = 0;
    if (gate == nullptr) {
#pragma omp simd reduction(+ : along)
      for (int64_t i = 0; i < width; ++i) {
        const float n = x[i] * scale;
        grad_weight[i] += n * grad[i];
        grad_x[i] = grad[i] * weight[i];
        along += n * grad_x[i];
      }
    } else {
#pragma omp simd reduction(+ : along)
      for (int64_t i = 0; i < width; ++i) {
        const float n = x[i] * scale;
        const float s = sigmoid(gate[i]);
        const float through = grad[i] * s;
        grad_weight[i] += n * through;
        grad_x[i] = through * weight[i];
        grad_gate[i] = n * grad_x[i] * (1.0F - s);
        along += n * grad_x[i];
      }
      gate += width;
      grad_gate += width;
    }
    along /= static_cast<float>(width);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) grad_x[i] = (grad_x[i] - x[i] * scale * along) * scale;
  }
}

namespace {

// Row t of a sequence; rows with t < 0 are in `before`.
inline const float* row_at(int64_t t, int64_t width, int64_t past, const float* before, const float* x) {
  return t < 0 ? before + (past + t) * width : x + t * width;
}

}  // namespace

CYFA_CLONES void conv(int64_t tokens, int64_t width, int64_t taps, const float* before, const float* x, const float* weight,
                      const float* bias, float* y) {
  const int64_t past = taps - 1;
  for (int64_t t = 0; t < tokens; ++t) {
    float* to = y + t * width;
    const float* now = x + t * width;
    const float* tap = weight + past * width;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) to[d] = now[d] * tap[d] + (bias == nullptr ? 0.0F : bias[d]);
    for (int64_t i = 0; i < past; ++i) {
      const float* row = row_at(t - past + i, width, past, before, x);
      tap = weight + i * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] += row[d] * tap[d];
    }
  }
}

CYFA_CLONES void conv_backward(int64_t tokens, int64_t after, int64_t width, int64_t taps, const float* grad, const float* weight,
                               float* grad_x) {
  for (int64_t t = 0; t < tokens; ++t) {
    float* to = grad_x + t * width;
    for (int64_t w = 0; w < taps && t + w < tokens + after; ++w) {
      const float* g = grad + (t + w) * width;
      const float* tap = weight + (taps - 1 - w) * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] = g[d] * tap[d] + (w == 0 ? 0.0F : to[d]);
    }
  }
}

CYFA_CLONES void conv_backward_before(int64_t tokens, int64_t width, int64_t taps, const float* grad, const float* weight,
                                      float* grad_before) {
  const int64_t past = taps - 1;
  for (int64_t i = 0; i < past; ++i) {
    float* to = grad_before + i * width;
    for (int64_t d = 0; d < width; ++d) to[d] = 0;
    for (int64_t t = 0; t <= i && t < tokens; ++t) {  // tap i - t connects token t with this row
      const float* g = grad + t * width;
      const float* tap = weight + (i - t) * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] += g[d] * tap[d];
    }
  }
}

CYFA_CLONES void conv_backward_weight(int64_t tokens, int64_t width, int64_t taps, const float* before, const float* x, const float* grad,
                                      float* grad_weight, float* grad_bias) {
  const int64_t past = taps - 1;
  for (int64_t t = 0; t < tokens; ++t) {
    const float* g = grad + t * width;
    for (int64_t i = 0; i < taps; ++i) {
      const float* row = row_at(t - past + i, width, past, before, x);
      float* to = grad_weight + i * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] += g[d] * row[d];
    }
    if (grad_bias == nullptr) continue;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) grad_bias[d] += g[d];
  }
}

CYFA_CLONES void conv_step(int64_t width, int64_t taps, const float* x, const float* weight, const float* bias, float* state, float* y) {
  const int64_t past = taps - 1;
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) y[d] = x[d] * weight[past * width + d] + (bias == nullptr ? 0.0F : bias[d]);
  for (int64_t i = 0; i < past; ++i) {
    const float* row = state + i * width;
    const float* tap = weight + i * width;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) y[d] += row[d] * tap[d];
  }
  for (int64_t i = 0; i < past; ++i) {
    const float* from = i + 1 < past ? state + (i + 1) * width : x;
    for (int64_t d = 0; d < width; ++d) state[i * width + d] = from[d];
  }
}

}  // namespace cyfa::rowwise
