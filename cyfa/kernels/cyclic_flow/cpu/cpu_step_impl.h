// The CPU decoding step of cyclic_flow (eq:cyfa-absolute-recurrence, eq:cyfa-absolute-readout), templated over a vector type. Included only
// by cpu_step.cc, cpu_step_avx2.cc and cpu_step_avx512.cc.
//
// Overwrites state_k, state_v, clock and o of every head in its range, and the whole workspace.
//
// The three files are compiled for different instruction sets and linked together, so the linker must not merge any function between them.
// Everything here is therefore in an anonymous namespace, and math.h functions are used instead of the inline ones of std.
#pragma once

#include <math.h>
#include <stdint.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "cyfa/kernels/cyclic_flow/cpu/cpu_step.h"

namespace cyfa::cyclic_flow::cpu_step {

// Empty if the file was compiled for another architecture.
void step_avx2(const StepParams& p, int64_t begin, int64_t end, float* workspace);
void step_avx512(const StepParams& p, int64_t begin, int64_t end, float* workspace);

namespace {

// Rows of the readout table processed together, so the vector they are multiplied with is loaded once for all of them.
constexpr int64_t kRows = 4;

// Prefetch distance within a state, in floats (2 KB). A sweep from memory runs at 29.6 GB/s; with 0.5, 1 or 4 KB it runs at 27.3 to 28.5,
// without prefetch at 25.8.
constexpr int64_t kAhead = 512;

// Cache lines of the value state prefetched per kRows rows of the table: 32 KB in total at M = 128, what memory delivers in that time.
constexpr int64_t kLines = 8;

// Alignment of workspace arrays in floats: 64 bytes, one cache line.
constexpr int64_t kAlign = 16;

constexpr int64_t aligned(int64_t floats) { return (floats + kAlign - 1) / kAlign * kAlign; }

struct Workspace {
  float* q;       // [K] after norm and scale
  float* k;       // [K] after norm
  float* trig;    // [M] cos and sin of frequency j at 2j and 2j + 1
  float* write;   // [M] beta U(-clock) b
  float* scores;  // [M] state_k^T q, then rotated by the clock
  float* probs;   // [M] logits, then their softmax
  float* read;    // [M] value query: state_v is read with it
  float* v;       // [V] aligned copy: loads and stores that straddle cache lines run at half the speed
  float* o;       // [V] accumulated here for the same reason

  static int64_t floats(const StepParams& p) { return kAlign + 2 * aligned(p.K) + 5 * aligned(p.M) + 2 * aligned(p.V); }

  Workspace(const StepParams& p, float* base) {
    const uintptr_t bytes = kAlign * sizeof(float);
    const uintptr_t address = reinterpret_cast<uintptr_t>(base);
    q = base + (bytes - address % bytes) % bytes / sizeof(float);
    k = q + aligned(p.K);
    trig = k + aligned(p.K);
    write = trig + aligned(p.M);
    scores = write + aligned(p.M);
    probs = scores + aligned(p.M);
    read = probs + aligned(p.M);
    v = read + aligned(p.M);
    o = v + aligned(p.V);
  }
};

// Old writes decay into the subnormal range, where some CPUs take a hundred cycles per multiplication. Flushing them to zero is harmless:
// they are 1e-38 next to states of order one. Only x86 has the switch here.
class FlushSubnormals {
 public:
#if defined(__SSE__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kSubnormalsAreZero); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kSubnormalsAreZero = 0x0040;
  unsigned saved_;
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif
};

// Prefetches the next kLines cache lines of a state and returns the new position.
inline const float* prefetch(const float* from, const float* end) {
  for (int64_t i = 0; i < kLines && from < end; ++i, from += kAlign) __builtin_prefetch(from, 1, 2);
  return from;
}

// to[0 .. n - 1] = x times scale, RMS-normalised if there is a weight.
template <class Vec>
void normalise(const float* x, const float* weight, float eps, float scale, int64_t n, float* to) {
  constexpr int64_t kWidth = Vec::kWidth;
  if (weight != nullptr) {
    Vec even = Vec::zero();
    Vec odd = Vec::zero();
    int64_t i = 0;
    for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
      const Vec a = Vec::load(x + i);
      const Vec b = Vec::load(x + i + kWidth);
      even = fma(a, a, even);
      odd = fma(b, b, odd);
    }
    float sum = Vec::sum(add(even, odd));
    for (; i < n; ++i) sum += x[i] * x[i];
    scale /= sqrtf(sum / static_cast<float>(n) + eps);
    for (i = 0; i < n; ++i) to[i] = x[i] * scale * weight[i];
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = x[i] * scale;
  }
}

// Computes trig and write for a clock. The powers of exp(2 pi i clock / m) are computed in double, where M / 2 multiplications lose nothing
// that fp32 could represent. The clock is first reduced modulo m, which is exact, so a clock of a million loses no accuracy.
void temporal_write(int64_t M, double clock, float beta, float* trig, float* write) {
  const double m = static_cast<double>(M - 1);
  const double turns = (clock - m * floor(clock / m)) / m;
  const double angle = 6.283185307179586476925 * turns;
  const double cos1 = cos(angle);
  const double sin1 = sin(angle);
  const float dc = static_cast<float>(beta * sqrt(1.0 / m));
  const float amplitude = static_cast<float>(beta * sqrt(2.0 / m));
  trig[0] = 1.0F;
  trig[1] = 0.0F;
  write[0] = dc;
  write[1] = 0.0F;
  double c = 1.0;
  double s = 0.0;
  for (int64_t j = 2; j < M; j += 2) {
    const double next = c * cos1 - s * sin1;
    s = c * sin1 + s * cos1;
    c = next;
    trig[j] = static_cast<float>(c);
    trig[j + 1] = static_cast<float>(s);
    write[j] = amplitude * trig[j];
    write[j + 1] = -amplitude * trig[j + 1];
  }
}

// Multiplies x[2j] + i x[2j + 1] by exp(i sign theta_j), in place.
void rotate(int64_t M, const float* trig, float sign, float* x) {
  for (int64_t j = 0; j < M; j += 2) {
    const float c = trig[j];
    const float s = sign * trig[j + 1];
    const float re = x[j];
    const float im = x[j + 1];
    x[j] = re * c - im * s;
    x[j + 1] = re * s + im * c;
  }
}

// One sweep over a state [rows, width]: S = alpha S + a x^T in place and acc = S^T b. x and acc are workspace arrays that are read and
// written up to the next multiple of kAlign.
//
// Rows are processed strictly in address order. Four rows at a time would load and store acc a quarter as often and take 2.2 instead of 3.5
// us for 128 KB in the L2 cache, but from memory they reach 0.74 of the speed of an in-place scaling where this order reaches 0.82.
template <class Vec>
void update_and_read(float* state, int64_t rows, int64_t width, float alpha, const float* a, const float* x, const float* b, float* acc) {
  constexpr int64_t kWidth = Vec::kWidth;
  const Vec decay = Vec::broadcast(alpha);
  for (int64_t i = 0; i < aligned(width); ++i) acc[i] = 0.0F;
  for (int64_t r = 0; r < rows; ++r, state += width) {
    const Vec in = Vec::broadcast(a[r]);
    const Vec out = Vec::broadcast(b[r]);
    int64_t i = 0;
    for (; i + kWidth <= width; i += kWidth) {
      if (i % kAlign == 0) __builtin_prefetch(state + i + kAhead, 1, 3);
      const Vec s = fma(in, Vec::load(x + i), mul(decay, Vec::load(state + i)));
      s.store(state + i);
      fma(out, s, Vec::load(acc + i)).store(acc + i);
    }
    if (i < width) {
      const Vec s = fma(in, Vec::load(x + i), mul(decay, Vec::load_first(state + i, width - i)));
      s.store_first(state + i, width - i);
      fma(out, s, Vec::load(acc + i)).store(acc + i);
    }
  }
}

// to[r] = table[r, :] x for rows 0 .. R - 1.
template <class Vec, int64_t R>
void dot_rows(const float* table, int64_t width, const float* x, float* to) {
  constexpr int64_t kWidth = Vec::kWidth;
  Vec sum[R];
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) sum[r] = Vec::zero();
  int64_t i = 0;
  for (; i + kWidth <= width; i += kWidth) {
    const Vec xi = Vec::load(x + i);
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) sum[r] = fma(Vec::load(table + r * width + i), xi, sum[r]);
  }
  if (i < width) {
    const Vec xi = Vec::load_first(x + i, width - i);
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) sum[r] = fma(Vec::load_first(table + r * width + i, width - i), xi, sum[r]);
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) to[r] = Vec::sum(sum[r]);
}

// acc += sum_r b[r] table[r, :] for rows 0 .. R - 1.
template <class Vec, int64_t R>
void add_rows(const float* table, int64_t width, const float* b, float* acc) {
  constexpr int64_t kWidth = Vec::kWidth;
  Vec weight[R];
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) weight[r] = Vec::broadcast(b[r]);
  int64_t i = 0;
  for (; i + kWidth <= width; i += kWidth) {
    Vec sum = Vec::zero();
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) sum = fma(weight[r], Vec::load(table + r * width + i), sum);
    add(Vec::load(acc + i), sum).store(acc + i);
  }
  if (i < width) {
    const int64_t rest = width - i;
    Vec sum = Vec::zero();
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) sum = fma(weight[r], Vec::load_first(table + r * width + i, rest), sum);
    add(Vec::load_first(acc + i, rest), sum).store_first(acc + i, rest);
  }
}

// exp(x) for x <= 0, accurate to one ulp. x = n ln 2 + r with |r| <= ln 2 / 2: the Taylor polynomial of exp(r) up to r^7 has an error of
// 5e-9, and n is added to the exponent. Below -87 the result is clamped at exp(-87) = 1.6e-38, negligible next to the largest term, which
// is 1.
template <class Vec>
Vec exp_not_positive(Vec x) {
  const Vec clamped = max(Vec::broadcast(-87.0F), x);  // this operand order propagates NaN
  // Adding 1.5 * 2^23 leaves n, rounded, in the low bits of the sum.
  const Vec shift = Vec::broadcast(12582912.0F);
  const Vec shifted = fma(clamped, Vec::broadcast(1.44269504F), shift);
  const Vec n = add(shifted, Vec::broadcast(-12582912.0F));
  Vec r = fma(n, Vec::broadcast(-0.693145752F), clamped);
  r = fma(n, Vec::broadcast(-1.42860677e-6F), r);
  Vec sum = Vec::broadcast(1.0F / 5040.0F);
  sum = fma(sum, r, Vec::broadcast(1.0F / 720.0F));
  sum = fma(sum, r, Vec::broadcast(1.0F / 120.0F));
  sum = fma(sum, r, Vec::broadcast(1.0F / 24.0F));
  sum = fma(sum, r, Vec::broadcast(1.0F / 6.0F));
  sum = fma(sum, r, Vec::broadcast(0.5F));
  sum = fma(sum, r, Vec::broadcast(1.0F));
  sum = fma(sum, r, Vec::broadcast(1.0F));
  return add_to_exponent(sum, shifted);
}

// In-place softmax of x[0 .. n - 1]; overwrites x up to the next multiple of kAlign.
template <class Vec>
void softmax(int64_t n, float* x) {
  constexpr int64_t kWidth = Vec::kWidth;
  for (int64_t i = n; i < aligned(n); ++i) x[i] = -__builtin_inff();
  Vec top = Vec::load(x);
  for (int64_t i = kWidth; i < n; i += kWidth) top = max(top, Vec::load(x + i));
  const Vec shift = Vec::broadcast(-Vec::top(top));
  Vec total = Vec::zero();
  for (int64_t i = 0; i < n; i += kWidth) {
    const Vec e = exp_not_positive(add(Vec::load(x + i), shift));
    e.store(x + i);
    total = add(total, e);
  }
  const Vec inverse = Vec::broadcast(1.0F / Vec::sum(total));
  for (int64_t i = 0; i < n; i += kWidth) mul(inverse, Vec::load(x + i)).store(x + i);
}

// read = table^T softmax(table scores) over the m active rows; probs is scratch. The table comes from cache, so memory would be idle: the
// function prefetches `next`, the state that is swept afterwards.
template <class Vec>
void read_out(const float* table, int64_t M, const float* scores, float* probs, float* read, const float* next, const float* next_end) {
  const int64_t m = M - 1;
  int64_t r = 0;
  for (; r + kRows <= m; r += kRows) {
    next = prefetch(next, next_end);
    dot_rows<Vec, kRows>(table + r * M, M, scores, probs + r);
  }
  for (; r < m; ++r) dot_rows<Vec, 1>(table + r * M, M, scores, probs + r);
  softmax<Vec>(m, probs);
  for (int64_t i = 0; i < M; ++i) read[i] = 0.0F;
  for (r = 0; r + kRows <= m; r += kRows) {
    next = prefetch(next, next_end);
    add_rows<Vec, kRows>(table + r * M, M, probs + r, read);
  }
  for (; r < m; ++r) add_rows<Vec, 1>(table + r * M, M, probs + r, read);
}

template <class Vec>
void step_pairs(const StepParams& p, int64_t begin, int64_t end, float* workspace) {
  const FlushSubnormals flush;
  const Workspace work(p, workspace);
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t h = pair / p.B;
    const int64_t row = pair % p.B * p.H + h;
    const float alpha = expf(p.log_alpha[row]);
    const double clock = p.clock[row] + static_cast<double>(p.delta[row]);
    p.clock[row] = clock;
    for (int64_t i = 0; i < kAhead && i < p.K * p.M; i += kAlign) __builtin_prefetch(p.state_k + row * p.K * p.M + i, 1, 3);
    normalise<Vec>(p.q + row * p.K, p.q_norm_weight, p.norm_eps, p.scale, p.K, work.q);
    normalise<Vec>(p.k + row * p.K, p.k_norm_weight, p.norm_eps, 1.0F, p.K, work.k);
    for (int64_t i = 0; i < p.V; ++i) work.v[i] = p.v[row * p.V + i];
    temporal_write(p.M, clock, p.beta[row], work.trig, work.write);

    update_and_read<Vec>(p.state_k + row * p.K * p.M, p.K, p.M, alpha, work.k, work.write, work.q, work.scores);
    rotate(p.M, work.trig, 1.0F, work.scores);
    float* state_v = p.state_v + row * p.M * p.V;
    read_out<Vec>(p.readout_table + h * p.M * p.M, p.M, work.scores, work.probs, work.read, state_v, state_v + p.M * p.V);
    rotate(p.M, work.trig, -1.0F, work.read);
    update_and_read<Vec>(state_v, p.M, p.V, alpha, work.write, work.v, work.read, work.o);
    for (int64_t i = 0; i < p.V; ++i) p.o[row * p.V + i] = work.o[i];
  }
}

}  // namespace
}  // namespace cyfa::cyclic_flow::cpu_step
