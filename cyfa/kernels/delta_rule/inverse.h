// Inverse of the unit triangular systems in the chunk-wise delta rules (the UT transform), on a CPU. Called by the portable passes of
// ops/recurrence. Overwrites `out`. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

namespace cyfa::delta_rule {

// out = (I + A)^-1 for each of `count` strictly lower triangular matrices A [size, size], contiguous. Entries of A on and above the
// diagonal are not read; out has ones on the diagonal and zeros above it. Row i of out depends on rows 0 .. i of A only.
void unit_lower_inverse(int64_t count, int64_t size, const float* a, float* out);
void unit_lower_inverse(int64_t count, int64_t size, const double* a, double* out);

}  // namespace cyfa::delta_rule
