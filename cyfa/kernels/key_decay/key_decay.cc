// Columns go a strip at a time, so that what a walk carries stays in registers or the L1 cache.
#include "cyfa/kernels/key_decay/key_decay.h"

#include <algorithm>

namespace cyfa::key_decay {
namespace {

constexpr int64_t kStrip = 64;

// Arithmetic on numbers below the smallest normal one takes a hundred times as long; they are as good as zero.
inline float flushed(float x) { return x < 2e-38F && x > -2e-38F ? 0.0F : x; }

struct Strip {
  alignas(64) float data[kStrip];

  float& operator[](int64_t j) { return data[j]; }
  void fill(float x) { std::fill_n(data, kStrip, x); }
};

template <class F>
void over_strips(int64_t width, const F& f) {
  for (int64_t column = 0; column < width; column += kStrip) f(column, std::min(kStrip, width - column));
}

}  // namespace

void from_start(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i * s.period + s.offset;
    over_strips(width, [&](int64_t column, int64_t count) {
      Strip product;
      product.fill(1.0F);
      for (int64_t t = 0; t < s.length; ++t) {
        const float* a = alpha + (first + t) * width + column;
        const float* from = x + (first + t) * width + column;
        float* to = out + (i * s.length + t) * width + column;
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) {
          product[j] = flushed(product[j] * a[j]);
          to[j] = from[j] * product[j];
        }
      }
    });
  }
}

void to_end(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i * s.period + s.offset;
    over_strips(width, [&](int64_t column, int64_t count) {
      Strip product;
      product.fill(1.0F);
      for (int64_t t = s.length - 1; t >= 0; --t) {
        const float* a = alpha + (first + t) * width + column;
        const float* from = x + (first + t) * width + column;
        float* to = out + (i * s.length + t) * width + column;
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) {
          to[j] = from[j] * product[j];
          product[j] = flushed(product[j] * a[j]);
        }
      }
    });
  }
}

void from_start_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out,
                         const float* alpha, float* grad_x, float* grad_log) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i * s.period + s.offset;
    over_strips(width, [&](int64_t column, int64_t count) {
      Strip product;
      product.fill(1.0F);
      for (int64_t t = 0; t < s.length; ++t) {
        const float* a = alpha + (first + t) * width + column;
        const float* g = grad + (i * s.length + t) * width + column;
        float* to = grad_x + (first + t) * width + column;
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) {
          product[j] = flushed(product[j] * a[j]);
          to[j] += g[j] * product[j];
        }
      }
      if (grad_log == nullptr) return;
      Strip sum;
      sum.fill(0.0F);
      for (int64_t t = s.length - 1; t >= 0; --t) {  // a gate has a share of every later row
        const float* g = grad + (i * s.length + t) * width + column;
        const float* value = out + (i * s.length + t) * width + column;
        float* to = grad_log + (first + t) * width + column;
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) {
          sum[j] += g[j] * value[j];
          to[j] += sum[j];
        }
      }
    });
  }
}

void to_end_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out, const float* alpha,
                     float* grad_x, float* grad_log) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i * s.period + s.offset;
    over_strips(width, [&](int64_t column, int64_t count) {
      Strip product;
      product.fill(1.0F);
      for (int64_t t = s.length - 1; t >= 0; --t) {
        const float* a = alpha + (first + t) * width + column;
        const float* g = grad + (i * s.length + t) * width + column;
        float* to = grad_x + (first + t) * width + column;
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) {
          to[j] += g[j] * product[j];
          product[j] = flushed(product[j] * a[j]);
        }
      }
      if (grad_log == nullptr) return;
      Strip sum;
      sum.fill(0.0F);
      for (int64_t t = 0; t < s.length; ++t) {  // a gate has a share of every earlier row
        const float* g = grad + (i * s.length + t) * width + column;
        const float* value = out + (i * s.length + t) * width + column;
        float* to = grad_log + (first + t) * width + column;
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) {
          to[j] += sum[j];
          sum[j] += g[j] * value[j];
        }
      }
    });
  }
}

void block_scores(int64_t size, int64_t width, const float* x, const float* y, const float* alpha, float* weights, int64_t stride) {
  for (int64_t t = 0; t < size; ++t) std::fill_n(weights + t * stride, t + 1, 0.0F);
  over_strips(width, [&](int64_t column, int64_t count) {
    for (int64_t s = 0; s < size; ++s) {
      Strip decayed;
      std::copy_n(y + s * width + column, count, decayed.data);
      for (int64_t t = s; t < size; ++t) {
        const float* query = x + t * width + column;
        if (t > s) {
          const float* a = alpha + t * width + column;
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) decayed[j] = flushed(decayed[j] * a[j]);
        }
        float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < count; ++j) sum += query[j] * decayed[j];
        weights[t * stride + s] += sum;
      }
    }
  });
}

void block_apply(int64_t size, int64_t width, const float* weights, int64_t stride, const float* y, const float* alpha, float* out) {
  over_strips(width, [&](int64_t column, int64_t count) {
    for (int64_t s = 0; s < size; ++s) {
      Strip decayed;
      std::copy_n(y + s * width + column, count, decayed.data);
      for (int64_t t = s; t < size; ++t) {
        const float* a = alpha + t * width + column;
        float* to = out + t * width + column;
        const float weight = weights[t * stride + s];
        if (t > s) {
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) decayed[j] = flushed(decayed[j] * a[j]);
        }
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) to[j] += weight * decayed[j];
      }
    }
  });
}

void block_backward(int64_t size, int64_t width, const float* weights, int64_t stride, const float* x, const float* y, const float* alpha,
                    float* grad_x, float* grad_y, float* grad_log) {
  over_strips(width, [&](int64_t column, int64_t count) {
    Strip decayed[kMaxBlock];  // D y[s] at t
    Strip adjoint;             // of the same
    for (int64_t s = 0; s < size; ++s) {
      std::copy_n(y + s * width + column, count, decayed[s].data);
      for (int64_t t = s + 1; t < size; ++t) {
        const float* a = alpha + t * width + column;
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) decayed[t][j] = flushed(decayed[t - 1][j] * a[j]);
      }
      if (grad_x != nullptr) {
        for (int64_t t = s; t < size; ++t) {
          const float weight = weights[t * stride + s];
          float* to = grad_x + t * width + column;
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) to[j] += weight * decayed[t][j];
        }
      }
      adjoint.fill(0.0F);
      for (int64_t t = size - 1; t > s; --t) {
        const float weight = weights[t * stride + s];
        const float* query = x + t * width + column;
        const float* a = alpha + t * width + column;
        float* to = grad_log + t * width + column;
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) {
          const float here = adjoint[j] + weight * query[j];
          to[j] += here * decayed[t][j];
          adjoint[j] = flushed(here * a[j]);
        }
      }
      const float weight = weights[s * stride + s];
      const float* query = x + s * width + column;
      float* to = grad_y + s * width + column;
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) to[j] += adjoint[j] + weight * query[j];
    }
  });
}

}  // namespace cyfa::key_decay
