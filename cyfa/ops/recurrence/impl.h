// What the files behind the linear attention interfaces (cyfa/ops/recurrence/recurrence.h) share: which interface it is, its inputs under
// one set of names, and the backends' forward and backward.
#pragma once

#include "cyfa/ops/common/sequences.h"
#include "cyfa/ops/recurrence/table.h"

namespace cyfa::ops {

struct RecurrenceSizes {
  int64_t B, T, N, H, K, V;
  bool packed;
  at::ScalarType compute;  // fp32, fp64 for fp64
};

// Everything that can be checked without reading data.
RecurrenceSizes check_recurrence(const Recurrence& r, const RecurrenceInputs& in);
std::vector<int64_t> recurrence_offsets(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSizes& s);

struct RecurrenceForward {
  at::Tensor o, final_state, saved;  // saved [rows, H, K, V]: states at segment starts
};

// Undefined where there is no such input; initial_state always.
struct RecurrenceGradients {
  at::Tensor q, k, v, log_alpha, beta, initial_state;
};

RecurrenceForward empty_forward(const RecurrenceInputs& in, const RecurrenceSizes& s, const SegmentSize& size, Backend backend);
RecurrenceGradients empty_gradients(const RecurrenceInputs& in, const RecurrenceSizes& s);

RecurrenceForward portable_forward(const Recurrence& r, const RecurrenceInputs& in, const SegmentSize& size, double scale);
RecurrenceGradients portable_backward(const Recurrence& r, const RecurrenceInputs& in, const SegmentSize& size, double scale,
                                      const at::Tensor& saved, const at::Tensor& grad_o, const at::Tensor& grad_final);
RecurrenceForward reference_forward(const Recurrence& r, const RecurrenceInputs& in, double scale);
RecurrenceGradients reference_backward(const Recurrence& r, const RecurrenceInputs& in, double scale, const at::Tensor& grad_o,
                                       const at::Tensor& grad_final);

// A fixed gate [H] as the gate of every token of q [.., H, K], in place; autograd sums its gradient. A q of another rank is refused later
// on.
void spread_fixed_gate(const Recurrence& r, RecurrenceInputs& in, int64_t rank);

}  // namespace cyfa::ops
