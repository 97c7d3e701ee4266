// See chunk_rows.h. Compiled for several x86-64 levels (CYFA_CLONES) and vectorised by `omp simd`.
#include "cyfa/kernels/cyclic_flow/cpu/chunk_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "cyfa/kernels/cpu/clones.h"
#include "cyfa/kernels/rowwise/exp.h"

namespace cyfa::cyclic_flow::chunk {
namespace {

using rowwise::exp_of_negative;

// exp underflows to 0 here even in double. Gates of -1e5 or minus infinity become this value, with the same decay, 0.
constexpr double kDeadGate = -1000.0;

inline float widened(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

inline uint16_t rounded(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(x != x ? 0x7FC0 : nearest);
}

}  // namespace

CYFA_CLONES void load_rows(const TokenRows& from, int64_t first, int64_t rows, int64_t width, float* to) {
  for (int64_t r = 0; r < rows; ++r, to += width) {
    const int64_t at = (first + r) * from.stride;
    if (from.bf16) {
      const uint16_t* row = static_cast<const uint16_t*>(from.data) + at;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) to[i] = widened(row[i]);
    } else {
      std::copy_n(static_cast<const float*>(from.data) + at, width, to);
    }
  }
}

CYFA_CLONES void store_rows(const TokenRowsOut& to, int64_t first, int64_t rows, int64_t width, const float* from) {
  for (int64_t r = 0; r < rows; ++r, from += width) {
    const int64_t at = (first + r) * to.stride;
    if (to.bf16) {
      uint16_t* row = static_cast<uint16_t*>(to.data) + at;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) row[i] = rounded(from[i]);
    } else {
      std::copy_n(from, width, static_cast<float*>(to.data) + at);
    }
  }
}

CYFA_CLONES void scale_rows(int64_t rows, int64_t width, const float* factor, const float* from, float* to) {
  for (int64_t r = 0; r < rows; ++r, from += width, to += width) {
    const float f = factor[r];
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) to[i] = f * from[i];
  }
}

CYFA_CLONES void scale(int64_t count, float factor, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

CYFA_CLONES void add(int64_t count, const float* x, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] += x[i];
}

CYFA_CLONES double dot(int64_t count, const float* a, const float* b) {
  constexpr int64_t kStretch = 1024;  // summed in fp32
  double all = 0;
  for (int64_t first = 0; first < count; first += kStretch) {
    const int64_t last = std::min(first + kStretch, count);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < last; ++i) sum += a[i] * b[i];
    all += sum;
  }
  return all;
}

CYFA_CLONES void decay_factors(int64_t n, const double* log_alpha, bool pairs, double* sums, Decay& decay) {
  double sum = 0;
  for (int64_t r = 0; r < n; ++r) {
    sum += std::max(log_alpha[r], kDeadGate);
    sums[r] = sum;
  }
  decay.whole = exp_of_negative(static_cast<float>(sum));
#pragma omp simd
  for (int64_t r = 0; r < n; ++r) {
    decay.from_start[r] = exp_of_negative(static_cast<float>(sums[r]));
    decay.to_end[r] = exp_of_negative(static_cast<float>(sum - sums[r]));
  }
  for (int64_t r = 0; pairs && r < n; ++r) {
    float* row = decay.between + r * n;
#pragma omp simd
    for (int64_t s = 0; s <= r; ++s) row[s] = exp_of_negative(static_cast<float>(sums[r] - sums[s]));
    std::fill(row + r + 1, row + n, 0.0F);
  }
}

CYFA_CLONES void phases(int64_t n, int64_t M, const double* clock, float* trig) {
  constexpr int64_t kPowers = 8;
  const double m = static_cast<double>(M - 1);
  const int64_t pairs = M / 2;
  for (int64_t t = 0; t < n; ++t, trig += M) {
    const double turn = (clock[t] - m * std::floor(clock[t] / m)) / m;
    const double angle = 2 * std::numbers::pi * turn;
    const double c1 = std::cos(angle);
    const double s1 = std::sin(angle);
    // Powers 0 .. 7 of z = c1 + i s1, then eight at a time by multiplication with z^8.
    double c[kPowers + 1];
    double s[kPowers + 1];
    c[0] = 1;
    s[0] = 0;
    c[1] = c1;
    s[1] = s1;
    for (int64_t j = 2; j <= kPowers; ++j) {
      const int64_t half = j / 2;
      const int64_t rest = j - half;
      c[j] = c[half] * c[rest] - s[half] * s[rest];
      s[j] = c[half] * s[rest] + s[half] * c[rest];
    }
    const double c8 = c[kPowers];
    const double s8 = s[kPowers];
    for (int64_t first = 0; first < pairs; first += kPowers) {
      float* to = trig + 2 * first;
      if (first + kPowers <= pairs) {
#pragma omp simd
        for (int64_t j = 0; j < kPowers; ++j) {
          to[2 * j] = static_cast<float>(c[j]);
          to[2 * j + 1] = static_cast<float>(s[j]);
        }
      } else {
        for (int64_t j = 0; first + j < pairs; ++j) {
          to[2 * j] = static_cast<float>(c[j]);
          to[2 * j + 1] = static_cast<float>(s[j]);
        }
      }
#pragma omp simd
      for (int64_t j = 0; j < kPowers; ++j) {
        const double next = c[j] * c8 - s[j] * s8;
        s[j] = c[j] * s8 + s[j] * c8;
        c[j] = next;
      }
    }
  }
}

CYFA_CLONES void write_vectors(int64_t n, int64_t M, const float* trig, const float* beta, float* addresses, float* writes) {
  const double m = static_cast<double>(M - 1);
  const auto amplitude = static_cast<float>(std::sqrt(2.0 / m));
  const auto constant = static_cast<float>(std::sqrt(1.0 / m));
  for (int64_t t = 0; t < n; ++t, trig += M, addresses += M, writes += M) {
    const float b = beta[t];
#pragma omp simd
    for (int64_t j = 0; j < M / 2; ++j) {
      addresses[2 * j] = amplitude * trig[2 * j];
      addresses[2 * j + 1] = -amplitude * trig[2 * j + 1];
    }
    addresses[0] = constant;
    addresses[1] = 0;
#pragma omp simd
    for (int64_t i = 0; i < M; ++i) writes[i] = b * addresses[i];
  }
}

CYFA_CLONES void rotate(int64_t n, int64_t M, const float* trig, float* x) {
#pragma omp simd
  for (int64_t j = 0; j < n * M / 2; ++j) {
    const float re = x[2 * j];
    const float im = x[2 * j + 1];
    x[2 * j] = re * trig[2 * j] - im * trig[2 * j + 1];
    x[2 * j + 1] = re * trig[2 * j + 1] + im * trig[2 * j];
  }
}

CYFA_CLONES void rotate_back(int64_t n, int64_t M, const float* trig, float* x) {
#pragma omp simd
  for (int64_t j = 0; j < n * M / 2; ++j) {
    const float re = x[2 * j];
    const float im = x[2 * j + 1];
    x[2 * j] = re * trig[2 * j] + im * trig[2 * j + 1];
    x[2 * j + 1] = im * trig[2 * j] - re * trig[2 * j + 1];
  }
}

// Over all M columns, of which the last counts for nothing: a loop over M - 1 would end with up to 15 numbers one by one, and takes 4.7
// instead of 3.5 us for 64 rows of 128.
CYFA_CLONES void softmax(int64_t n, int64_t M, float* x) {
  for (int64_t t = 0; t < n; ++t, x += M) {
    x[M - 1] = -std::numeric_limits<float>::infinity();
    float top = x[0];
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < M; ++i) top = x[i] > top ? x[i] : top;
#pragma omp simd
    for (int64_t i = 0; i < M; ++i) x[i] = exp_of_negative(x[i] - top);
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < M; ++i) total += x[i];
    const float inverse = 1.0F / total;
#pragma omp simd
    for (int64_t i = 0; i < M; ++i) x[i] *= inverse;
  }
}

CYFA_CLONES void softmax_backward(int64_t n, int64_t M, const float* probs, float* grad) {
  for (int64_t t = 0; t < n; ++t, probs += M, grad += M) {
    grad[M - 1] = 0;
    float along = 0;
#pragma omp simd reduction(+ : along)
    for (int64_t i = 0; i < M; ++i) along += probs[i] * grad[i];
#pragma omp simd
    for (int64_t i = 0; i < M; ++i) grad[i] = probs[i] * (grad[i] - along);
  }
}

CYFA_CLONES void apply_decay(int64_t n, const float* between, float* x) {
  for (int64_t r = 0; r < n; ++r, between += n, x += n) {
#pragma omp simd
    for (int64_t s = 0; s <= r; ++s) x[s] *= between[s];
    std::fill(x + r + 1, x + n, 0.0F);
  }
}

CYFA_CLONES void apply_decay_backward(int64_t n, const float* between, float* x, float* grad, float* pairs, bool add) {
  for (int64_t r = 0; r < n; ++r, between += n, x += n, grad += n, pairs += n) {
    const float before = add ? 1.0F : 0.0F;
    if (!add) std::fill(pairs, pairs + n, 0.0F);
#pragma omp simd
    for (int64_t s = 0; s <= r; ++s) {
      grad[s] *= between[s];
      pairs[s] = before * pairs[s] + x[s] * grad[s];
      x[s] *= between[s];
    }
    pairs[r] = 0;
    std::fill(x + r + 1, x + n, 0.0F);
    std::fill(grad + r + 1, grad + n, 0.0F);
  }
}

CYFA_CLONES void gate_gradient(int64_t n, const float* pairs, const float* from_start, const float* to_end, double whole, float* sums,
                               float* grad) {
  std::fill(sums, sums + n, 0.0F);
  double read = 0;
  for (int64_t s = n - 1; s >= 0; --s) {
    // sums[i] = pairs (t, i) over t >= s
    const float* row = pairs + s * n;
    float inside = 0;
#pragma omp simd reduction(+ : inside)
    for (int64_t i = 0; i < s; ++i) {
      sums[i] += row[i];
      inside += sums[i];
    }
    read += from_start[s];
    grad[s] = static_cast<float>(inside + read + whole);
  }
  double written = 0;
  for (int64_t s = 0; s < n; ++s) {
    grad[s] = static_cast<float>(grad[s] + written);
    written += to_end[s];
  }
}

}  // namespace cyfa::cyclic_flow::chunk
