// The loops of key_decay.h, written once and compiled for each instruction set. `Isa` is a tag that makes the instantiations distinct
// types. The loops process strips of kStrip columns, so that running products stay in registers or in the L1 cache. They call nothing from
// the standard library: an inline function compiled for one instruction set could otherwise be linked into code for another.
#pragma once

#include "cyfa/kernels/key_decay/key_decay_table.h"

namespace cyfa::key_decay::impl {

inline constexpr int64_t kStrip = 64;
inline constexpr int64_t kLanes = 16;

// A full strip, so that the compiler knows the trip count.
struct WholeStrip {
  constexpr operator int64_t() const { return kStrip; }
};

template <class Isa>
struct Loops {
  struct Strip {
    alignas(64) float data[kStrip];

    float& operator[](int64_t j) { return data[j]; }
    void fill(float x) {
      for (float& entry : data) entry = x;
    }
  };

  template <class F>
  static void over_strips(int64_t width, const F& f) {
    int64_t column = 0;
    for (; column + kStrip <= width; column += kStrip) f(column, WholeStrip());
    if (column < width) f(column, width - column);
  }

  // Calls f(row of a full matrix, row of the compact matrix) for the rows of stretch i, forwards or backwards.
  template <bool kForwards, class F>
  static void over_rows(const Stretches& s, int64_t i, const F& f) {
    for (int64_t step = 0; step < s.length; ++step) {
      const int64_t t = kForwards ? step : s.length - 1 - step;
      f(i * s.period + s.offset + t, i * s.compact_period + t);
    }
  }

  static void from_start(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out) {
    for (int64_t i = begin; i < end; ++i) {
      over_strips(width, [&](int64_t column, auto count) {
        Strip product;
        product.fill(1.0F);
        over_rows<true>(s, i, [&](int64_t row, int64_t compact) {
          const float* a = alpha + row * width + column;
          const float* from = x + row * width + column;
          float* to = out + compact * width + column;
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) {
            product[j] *= a[j];
            to[j] = from[j] * product[j];
          }
        });
      });
    }
  }

  static void to_end(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out) {
    for (int64_t i = begin; i < end; ++i) {
      over_strips(width, [&](int64_t column, auto count) {
        Strip product;
        product.fill(1.0F);
        over_rows<false>(s, i, [&](int64_t row, int64_t compact) {
          const float* a = alpha + row * width + column;
          const float* from = x + row * width + column;
          float* to = out + compact * width + column;
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) {
            to[j] = from[j] * product[j];
            product[j] *= a[j];
          }
        });
      });
    }
  }

  static void from_start_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out,
                                  const float* alpha, float* grad_x, float* grad_log) {
    for (int64_t i = begin; i < end; ++i) {
      over_strips(width, [&](int64_t column, auto count) {
        Strip product;
        product.fill(1.0F);
        if (grad_x != nullptr)
          over_rows<true>(s, i, [&](int64_t row, int64_t compact) {
            const float* a = alpha + row * width + column;
            const float* g = grad + compact * width + column;
            float* to = grad_x + row * width + column;
#pragma omp simd
            for (int64_t j = 0; j < count; ++j) {
              product[j] *= a[j];
              to[j] += g[j] * product[j];
            }
          });
        if (grad_log == nullptr) return;
        Strip sum;
        sum.fill(0.0F);
        over_rows<false>(s, i, [&](int64_t row, int64_t compact) {  // alpha[t] scales row t and all later rows of the stretch
          const float* g = grad + compact * width + column;
          const float* value = out + compact * width + column;
          float* to = grad_log + row * width + column;
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) {
            sum[j] += g[j] * value[j];
            to[j] += sum[j];
          }
        });
      });
    }
  }

  static void to_end_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out,
                              const float* alpha, float* grad_x, float* grad_log) {
    for (int64_t i = begin; i < end; ++i) {
      over_strips(width, [&](int64_t column, auto count) {
        Strip product;
        product.fill(1.0F);
        over_rows<false>(s, i, [&](int64_t row, int64_t compact) {
          const float* a = alpha + row * width + column;
          const float* g = grad + compact * width + column;
          float* to = grad_x + row * width + column;
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) {
            to[j] += g[j] * product[j];
            product[j] *= a[j];
          }
        });
        if (grad_log == nullptr) return;
        Strip sum;
        sum.fill(0.0F);
        over_rows<true>(s, i, [&](int64_t row, int64_t compact) {  // alpha[t] scales all earlier rows of the stretch
          const float* g = grad + compact * width + column;
          const float* value = out + compact * width + column;
          float* to = grad_log + row * width + column;
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) {
            to[j] += sum[j];
            sum[j] += g[j] * value[j];
          }
        });
      });
    }
  }

  static void block_scores(int64_t size, int64_t width, const float* x, const float* y, const float* alpha, float* weights,
                           int64_t stride) {
    float sums[kMaxBlock][kMaxBlock][kLanes];  // [t][s][l]: sum over columns l, l + kLanes, ...
    for (int64_t t = 0; t < size; ++t) {
      for (int64_t s = 0; s <= t; ++s) {
        for (float& sum : sums[t][s]) sum = 0.0F;
      }
    }
    over_strips(width, [&](int64_t column, auto count) {
      for (int64_t s = 0; s < size; ++s) {
        Strip decayed;
        for (int64_t j = 0; j < count; ++j) decayed[j] = y[s * width + column + j];
        for (int64_t t = s; t < size; ++t) {
          const float* query = x + t * width + column;
          const float* a = alpha + t * width + column;
          if (t > s) {
#pragma omp simd
            for (int64_t j = 0; j < count; ++j) decayed[j] *= a[j];
          }
          float* sum = sums[t][s];
          const int64_t whole = count / kLanes * kLanes;
          for (int64_t j = 0; j < whole; j += kLanes) {
#pragma omp simd
            for (int64_t l = 0; l < kLanes; ++l) sum[l] += query[j + l] * decayed[j + l];
          }
          for (int64_t j = whole; j < count; ++j) sum[j - whole] += query[j] * decayed[j];
        }
      }
    });
    for (int64_t t = 0; t < size; ++t) {
      for (int64_t s = 0; s <= t; ++s) {
        float total = 0.0F;
#pragma omp simd reduction(+ : total)
        for (int64_t l = 0; l < kLanes; ++l) total += sums[t][s][l];
        weights[t * stride + s] = total;
      }
    }
  }

  static void block_apply(int64_t size, int64_t width, const float* weights, int64_t stride, const float* y, const float* alpha,
                          float* out) {
    over_strips(width, [&](int64_t column, auto count) {
      for (int64_t s = 0; s < size; ++s) {
        Strip decayed;
        for (int64_t j = 0; j < count; ++j) decayed[j] = y[s * width + column + j];
        for (int64_t t = s; t < size; ++t) {
          const float* a = alpha + t * width + column;
          float* to = out + t * width + column;
          const float weight = weights[t * stride + s];
          if (t > s) {
#pragma omp simd
            for (int64_t j = 0; j < count; ++j) decayed[j] *= a[j];
          }
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) to[j] += weight * decayed[j];
        }
      }
    });
  }

  static void block_backward(int64_t size, int64_t width, const float* weights, int64_t stride, const float* x, const float* y,
                             const float* alpha, float* grad_x, float* grad_y, float* grad_log) {
    over_strips(width, [&](int64_t column, auto count) {
      Strip decayed[kMaxBlock];  // D y[s] for row t
      Strip adjoint;             // its gradient
      for (int64_t s = 0; s < size; ++s) {
        for (int64_t j = 0; j < count; ++j) decayed[s][j] = y[s * width + column + j];
        for (int64_t t = s + 1; t < size; ++t) {
          const float* a = alpha + t * width + column;
#pragma omp simd
          for (int64_t j = 0; j < count; ++j) decayed[t][j] = decayed[t - 1][j] * a[j];
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
            adjoint[j] = here * a[j];
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
};

template <class Isa>
constexpr Table table_of() {
  using L = Loops<Isa>;
  return {&L::from_start, &L::to_end, &L::from_start_backward, &L::to_end_backward, &L::block_scores, &L::block_apply, &L::block_backward};
}

}  // namespace cyfa::key_decay::impl
