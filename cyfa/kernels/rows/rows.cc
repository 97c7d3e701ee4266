#include "cyfa/kernels/rows/rows.h"

#include <cmath>
#include <limits>

// One copy of each function per instruction set, chosen when the program starts.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define CYFA_CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define CYFA_CLONES
#endif

namespace cyfa::rows {

// A padded row is zero, and its norm must stay finite where eps is 0.
constexpr float kSmallest = std::numeric_limits<float>::min();

CYFA_CLONES void rms_norm(int64_t rows, int64_t width, const float* x, int64_t x_stride, const float* weight, float eps, float* rate, float* unit,
                          float* out) {
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

}  // namespace cyfa::rows
