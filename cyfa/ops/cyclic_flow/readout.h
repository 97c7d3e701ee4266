// The token-wise part of cyclic_flow between its two passes (middle line of eq:cyfa-two-pass), and the temporal write vectors, on ATen.
// Used by the portable backend, the ATen decode step and the readout table. A stored row of M coordinates is treated as M / 2 complex
// numbers, and rotations are complex products.
#pragma once

#include <torch/types.h>

namespace cyfa::ops {

// Phi with its columns in stored order, [m, M]; column 1, of the padding row, is zero.
at::Tensor fourier_basis(int64_t M, at::TensorOptions options);

// R Phi, [H, M, M], with a zero row m: a matrix product with 127 columns is slower than one with 128.
at::Tensor readout_table(const at::Tensor& readout, at::ScalarType dtype);
// The gradient of the readout [H, m, m] from that of its table.
at::Tensor readout_table_backward(const at::Tensor& grad_table);

// U(clock) of each token as unit complex numbers, [..., M / 2].
struct ClockPhases {
  at::Tensor forward;   // exp(+i 2 pi j clock / m)
  at::Tensor backward;  // its conjugate

  // clock [...] is double, and is reduced modulo m before the conversion to radians, so that large clocks stay exact.
  ClockPhases(const at::Tensor& clock, int64_t M, at::ScalarType dtype);
};

// U(-clock) b, [..., M] (eq:app-temporal-writes without beta).
at::Tensor temporal_addresses(const ClockPhases& phases);

// Results of read_slots; backward needs `rotated` and `probs`.
struct SlotReadout {
  at::Tensor rotated;  // U(clock) scores
  at::Tensor probs;    // softmax over the m active slots; column m is zero
  at::Tensor weights;  // U(-clock) A^T probs: the query of the value pass
};

// Reads the slots: scores [n, g, C, M], table [H, M, M], n = lanes * H.
SlotReadout read_slots(const at::Tensor& scores, const ClockPhases& phases, const at::Tensor& table);

// Returns the gradient of the scores and adds to grad_table [H, M, M].
at::Tensor read_slots_backward(const SlotReadout& forward, const ClockPhases& phases, const at::Tensor& table,
                               const at::Tensor& grad_weights, const at::Tensor& grad_table);

}  // namespace cyfa::ops
