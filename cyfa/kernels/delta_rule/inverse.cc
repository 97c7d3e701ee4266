// Forward substitution, one row at a time: T_i = e_i - sum over j < i of A_ij T_j. See inverse.h.
#include "cyfa/kernels/delta_rule/inverse.h"

#include <algorithm>

#include "cyfa/kernels/cpu/clones.h"

namespace cyfa::delta_rule {
namespace {

template <class Real>
[[gnu::always_inline]] inline void invert(int64_t count, int64_t size, const Real* a, Real* out) {
  for (int64_t m = 0; m < count; ++m, a += size * size, out += size * size) {
    for (int64_t i = 0; i < size; ++i) {
      Real* row = out + i * size;
      std::fill_n(row, size, Real(0));
      row[i] = Real(1);
      for (int64_t j = 0; j < i; ++j) {
        const Real weight = a[i * size + j];
        const Real* other = out + j * size;
#pragma omp simd
        for (int64_t c = 0; c <= j; ++c) row[c] -= weight * other[c];
      }
    }
  }
}

}  // namespace

CYFA_CLONES
void unit_lower_inverse(int64_t count, int64_t size, const float* a, float* out) { invert(count, size, a, out); }
CYFA_CLONES
void unit_lower_inverse(int64_t count, int64_t size, const double* a, double* out) { invert(count, size, a, out); }

}  // namespace cyfa::delta_rule
