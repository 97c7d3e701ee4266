// Products of small matrices against sums in double, for every instruction set of this machine.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cyfa/kernels/dense/product.h"

namespace cyfa::dense {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<cpu::Isa> isas() {
  std::vector<cpu::Isa> found;
  for (const cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (cpu::isa_available(isa)) found.push_back(isa);
  }
  return found;
}

std::vector<float> normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = draw(random);
  return x;
}

float at(const MatrixView& x, int64_t i, int64_t j) { return x.data[i * x.row + j * x.column]; }

// A product of random matrices, rows of c being c_row apart.
struct Case {
  std::vector<float> a, b, c, base;
  Product p;

  Case(int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed, int64_t gap = 3) : a(normal(m * k, 1)), b(normal(k * n, 2)) {
    p.m = m;
    p.n = n;
    p.k = k;
    p.a = a_transposed ? MatrixView{a.data(), 1, m} : MatrixView{a.data(), k, 1};
    p.b = b_transposed ? MatrixView{b.data(), 1, k} : MatrixView{b.data(), n, 1};
    p.c_row = n + gap;
    base = normal(m * p.c_row, 3);
    c.assign(static_cast<size_t>(m * p.c_row), kNaN);
    p.c = c.data();
  }
  Case(const Case&) = delete;

  float got(int64_t i, int64_t j) const { return c[static_cast<size_t>(i * p.c_row + j)]; }

  void check(int64_t i, int64_t j, const char* isa) const {
    double sum = p.keep == 0 ? 0 : static_cast<double>(p.keep) * base[static_cast<size_t>(i * p.c_row + j)];
    double size = std::abs(sum) + 1e-3;
    for (int64_t l = 0; l < p.k; ++l) {
      const double term = static_cast<double>(at(p.a, i, l)) * at(p.b, l, j);
      sum += term;
      size += std::abs(term);
    }
    ASSERT_NEAR(got(i, j), sum, 4e-7 * size) << isa << " m " << p.m << " n " << p.n << " k " << p.k << " at " << i << ", " << j;
  }
};

TEST(Product, MatchesSumsInDouble) {
  for (const cpu::Isa isa : isas()) {
    for (const int64_t m : {1, 5, 6, 8, 21}) {
      for (const int64_t n : {1, 7, 16, 31, 33, 64}) {
        for (const int64_t k : {0, 1, 15, 16, 37, 300}) {  // 300 is more than stays in the cache at a time
          for (const int layout : {0, 1, 2, 3}) {
            Case c(m, n, k, layout % 2 == 1, layout / 2 == 1);
            product(c.p, isa);
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) c.check(i, j, cpu::isa_name(isa));
              for (int64_t j = n; j < c.p.c_row; ++j) EXPECT_TRUE(std::isnan(c.got(i, j)));
            }
          }
        }
      }
    }
  }
}

TEST(Product, AddsToAMultipleOfAnotherMatrixOrOfItself) {
  for (const cpu::Isa isa : isas()) {
    for (const int64_t k : {0, 20, 600}) {
      for (const bool in_place : {false, true}) {
        Case c(11, 35, k, true, false);
        c.p.keep = -0.5F;
        if (in_place) c.c = c.base;
        c.p.c = c.c.data();
        c.p.base = in_place ? c.c.data() : c.base.data();
        product(c.p, isa);
        for (int64_t i = 0; i < 11; ++i) {
          for (int64_t j = 0; j < 35; ++j) c.check(i, j, cpu::isa_name(isa));
        }
      }
    }
  }
}

// With the zeros of a triangular matrix in place, the result is that of the whole product; 300 rows need several rounds.
TEST(Product, LeavesOutWhatIsZero) {
  for (const cpu::Isa isa : isas()) {
    for (const int64_t m : {1, 13, 64, 300}) {
      for (const Triangle triangle : {Triangle::kLowerLeft, Triangle::kUpperLeft}) {
        for (const bool transposed : {false, true}) {
          Case c(m, 19, m, transposed, false);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t l = 0; l < m; ++l) {
              if (triangle == Triangle::kLowerLeft ? l > i : l < i) c.a[static_cast<size_t>(i * c.p.a.row + l * c.p.a.column)] = 0;
            }
          }
          c.p.triangle = triangle;
          product(c.p, isa);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < 19; ++j) c.check(i, j, cpu::isa_name(isa));
          }
        }
      }
      Case c(m, m, 40, false, true);
      c.p.triangle = Triangle::kLowerResult;
      product(c.p, isa);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j <= i; ++j) c.check(i, j, cpu::isa_name(isa));
      }
    }
  }
}

// The operator relies on this: neither the tokens that follow nor the length of a chunk change the bits of a token's result.
TEST(Product, BitsOfAnElementDependOnItsRowAndColumnOnly) {
  for (const cpu::Isa isa : isas()) {
    Case all(37, 45, 130, false, false);
    product(all.p, isa);
    for (const int64_t m : {1, 9, 36}) {
      for (const int64_t n : {1, 20, 44}) {
        Case part(37, 45, 130, false, false);
        part.p.m = m;
        part.p.n = n;
        product(part.p, isa);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) ASSERT_EQ(std::bit_cast<uint32_t>(part.got(i, j)), std::bit_cast<uint32_t>(all.got(i, j)));
        }
      }
    }
  }
}

TEST(Product, TransposesMatricesOfAnySize) {
  for (const cpu::Isa isa : isas()) {
    for (const int64_t rows : {1, 4, 15, 16, 33, 48}) {
      for (const int64_t columns : {1, 3, 16, 20, 32, 47}) {
        const std::vector<float> from = normal(rows * columns, 4);
        std::vector<float> to(from.size(), kNaN);
        transpose(rows, columns, from.data(), to.data(), isa);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < columns; ++c) {
            ASSERT_EQ(to[static_cast<size_t>(c * rows + r)], from[static_cast<size_t>(r * columns + c)]) << cpu::isa_name(isa);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cyfa::dense
