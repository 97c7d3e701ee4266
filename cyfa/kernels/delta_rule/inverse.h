// The triangular systems of the delta rules' chunks (the UT form), on a CPU. No torch, no threads, no allocation.
#pragma once

#include <cstdint>

namespace cyfa::delta_rule {

// out = (I + A)^-1 for each of `count` strictly lower triangular matrices A [size, size]; entries of A on and above the diagonal are not
// read, those of out are 1 and 0. Every row depends on the rows of A up to its own alone.
void unit_lower_inverse(int64_t count, int64_t size, const float* a, float* out);
void unit_lower_inverse(int64_t count, int64_t size, const double* a, double* out);

}  // namespace cyfa::delta_rule
