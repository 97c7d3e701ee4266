// The CPU kernels for gates per key dimension, and the triangular inverse of the delta rules, against their definitions in double, for
// every instruction set of this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cyfa/kernels/cpu/isa.h"
#include "cyfa/kernels/delta_rule/inverse.h"
#include "cyfa/kernels/key_decay/key_decay_table.h"
#include "tests/kernels/random_case.h"

namespace cyfa::key_decay {
namespace {

using test::RandomSource;
using Numbers = std::vector<float>;

struct Set {
  std::string name;
  impl::Table table;
};

std::vector<Set> sets() {
  std::vector<Set> all = {{"baseline", impl::table_baseline()}};
  if (cpu::isa_available(cpu::Isa::kAvx2)) all.push_back({"avx2", impl::table_avx2()});
  if (cpu::isa_available(cpu::Isa::kAvx512)) all.push_back({"avx512", impl::table_avx512()});
  return all;
}

Numbers normals(RandomSource& random, int64_t count) {
  const std::vector<double> wide = random.normals(count);
  return {wide.begin(), wide.end()};
}

// Gates in (0, 1), some of them exactly 0 or 1.
Numbers gates(RandomSource& random, int64_t count) {
  Numbers alpha;
  for (int64_t i = 0; i < count; ++i)
    alpha.push_back(i % 11 == 3 ? 0.0F : i % 7 == 5 ? 1.0F : static_cast<float>(std::exp(random.log_decay())));
  return alpha;
}

void expect_near(const Numbers& got, const std::vector<double>& want, const std::string& what) {
  double error = 0.0, norm = 0.0;
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(error), 2e-6 * std::sqrt(norm) + 1e-12) << what;
}

constexpr int64_t kWidths[] = {1, 5, 16, 63, 64, 65, 130, 256};

// D_ts for one column: alpha[s + 1] .. alpha[t], counted from row `first`.
double decay(const Numbers& alpha, int64_t width, int64_t first, int64_t s, int64_t t, int64_t j) {
  double product = 1.0;
  for (int64_t u = s + 1; u <= t; ++u) product *= alpha[static_cast<size_t>((first + u) * width + j)];
  return product;
}

TEST(KeyDecay, StretchesAreScaledAndTheirAdjointsAddUp) {
  constexpr int64_t kRows = 24;
  for (const Set& set : sets()) {
    for (const int64_t width : kWidths) {
      for (const Stretches& s : {Stretches{12, 0, 12, 12}, Stretches{8, 4, 4, 4}, Stretches{8, 0, 4, 9}}) {
        SCOPED_TRACE(set.name + " width " + std::to_string(width) + " length " + std::to_string(s.length));
        RandomSource random(static_cast<uint64_t>(width));
        const int64_t count = kRows / s.period;
        const int64_t compact = count * s.compact_period * width;
        const Numbers x = normals(random, kRows * width), alpha = gates(random, kRows * width), grad = normals(random, compact);
        for (const bool forwards : {true, false}) {
          Numbers out(static_cast<size_t>(compact), 0.0F), grad_x(x.size(), 0.5F), grad_log(x.size(), 0.25F);
          std::vector<double> want_out(out.size(), 0.0), want_x(x.size(), 0.5), want_log(x.size(), 0.25);
          for (int64_t i = 0; i < count; ++i) {
            const int64_t first = i * s.period + s.offset;
            for (int64_t t = 0; t < s.length; ++t) {
              for (int64_t j = 0; j < width; ++j) {
                const size_t from = static_cast<size_t>((first + t) * width + j);
                const size_t to = static_cast<size_t>((i * s.compact_period + t) * width + j);
                const double factor = forwards ? decay(alpha, width, first, -1, t, j) : decay(alpha, width, first, t, s.length - 1, j);
                want_out[to] = x[from] * factor;
                want_x[from] += grad[to] * factor;
                for (int64_t u = forwards ? 0 : t + 1; u <= (forwards ? t : s.length - 1); ++u) {
                  want_log[static_cast<size_t>((first + u) * width + j)] += grad[to] * want_out[to];
                }
              }
            }
          }
          (forwards ? set.table.from_start : set.table.to_end)(s, 0, count, width, x.data(), alpha.data(), out.data());
          (forwards ? set.table.from_start_backward : set.table.to_end_backward)(s, 0, count, width, grad.data(), out.data(), alpha.data(),
                                                                                 grad_x.data(), grad_log.data());
          expect_near(out, want_out, "out");
          expect_near(grad_x, want_x, "grad_x");
          expect_near(grad_log, want_log, "grad_log");
        }
      }
    }
  }
}

TEST(KeyDecay, BlocksAreTheirDefinition) {
  for (const Set& set : sets()) {
    for (const int64_t width : kWidths) {
      for (const int64_t size : {int64_t{1}, int64_t{2}, int64_t{8}, kMaxBlock}) {
        SCOPED_TRACE(set.name + " width " + std::to_string(width) + " size " + std::to_string(size));
        RandomSource random(static_cast<uint64_t>(width + size));
        const int64_t stride = size + 3;
        const Numbers x = normals(random, size * width), y = normals(random, size * width), alpha = gates(random, size * width);
        const Numbers weights = normals(random, size * stride);
        Numbers scores(weights.size(), 7.0F), applied(x.size(), 0.5F), grad_x(x.size(), 0.5F), grad_y(x.size(), 0.5F),
            grad_log(x.size(), 0.5F);
        std::vector<double> want_scores(weights.size(), 7.0), want_x(x.size(), 0.5), want_y(x.size(), 0.5), want_log(x.size(), 0.5);
        for (int64_t t = 0; t < size; ++t) {
          for (int64_t s = 0; s <= t; ++s) {
            double sum = 0.0;
            const double weight = weights[static_cast<size_t>(t * stride + s)];
            for (int64_t j = 0; j < width; ++j) {
              const double factor = decay(alpha, width, 0, s, t, j);
              const double query = x[static_cast<size_t>(t * width + j)], key = y[static_cast<size_t>(s * width + j)];
              sum += query * factor * key;
              want_x[static_cast<size_t>(t * width + j)] += weight * factor * key;
              want_y[static_cast<size_t>(s * width + j)] += weight * factor * query;
              for (int64_t u = s + 1; u <= t; ++u) want_log[static_cast<size_t>(u * width + j)] += weight * factor * query * key;
            }
            want_scores[static_cast<size_t>(t * stride + s)] = sum;
          }
        }
        set.table.block_scores(size, width, x.data(), y.data(), alpha.data(), scores.data(), stride);
        set.table.block_apply(size, width, weights.data(), stride, y.data(), alpha.data(), applied.data());
        set.table.block_backward(size, width, weights.data(), stride, x.data(), y.data(), alpha.data(), grad_x.data(), grad_y.data(),
                                 grad_log.data());
        expect_near(scores, want_scores, "scores");
        expect_near(applied, want_x, "applied");
        expect_near(grad_x, want_x, "grad_x");
        expect_near(grad_y, want_y, "grad_y");
        expect_near(grad_log, want_log, "grad_log");
      }
    }
  }
}

TEST(UnitLowerInverse, TimesItsMatrixIsOne) {
  RandomSource random(3);
  for (const int64_t size : {1, 2, 7, 64}) {
    constexpr int64_t kCount = 3;
    std::vector<double> a = random.normals(kCount * size * size);
    for (double& x : a) x *= 0.2;
    std::vector<double> inverse(a.size(), 9.0);
    delta_rule::unit_lower_inverse(kCount, size, a.data(), inverse.data());
    for (int64_t m = 0; m < kCount; ++m) {
      const double* matrix = a.data() + m * size * size;
      const double* other = inverse.data() + m * size * size;
      for (int64_t i = 0; i < size; ++i) {
        for (int64_t j = 0; j < size; ++j) {
          double sum = other[i * size + j];
          for (int64_t l = 0; l < i; ++l) sum += matrix[i * size + l] * other[l * size + j];
          EXPECT_NEAR(sum, i == j ? 1.0 : 0.0, 1e-9) << i << " " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cyfa::key_decay
