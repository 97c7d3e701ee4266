// Shapes of the cyclic_flow operator, shared by the reference and its tests. No torch.
//
// Dimension letters (docs/notation.md): N sequences, T tokens of all sequences together, H heads, K = d_k, V = d_v, M stored slots (even),
// m = M - 1 active slots (odd).
//
// Order of the M stored Fourier coordinates: row 0 is DC, row 1 is padding (always zero), rows 2j and 2j + 1 are the cosine and sine of
// frequency j = 1 .. (m - 1) / 2. With pairs read as complex numbers z_j = x[2j] + i x[2j + 1], the paper's rotation U(tau) multiplies z_j
// by exp(i 2 pi j tau / m) and leaves pair 0 (DC, padding) unchanged.
#pragma once

#include <cstdint>

namespace cyfa::cyclic_flow {

struct Shape {
  int64_t N = 0;  // sequences
  int64_t T = 0;  // tokens, all sequences together
  int64_t H = 0;  // heads
  int64_t K = 0;  // key and query width of a head
  int64_t V = 0;  // value width of a head
  int64_t M = 0;  // stored slots, even; m = M - 1 are active

  int64_t m() const { return M - 1; }
  int64_t pairs() const { return M / 2; }  // complex coordinates, including the DC/padding pair
};

}  // namespace cyfa::cyclic_flow
