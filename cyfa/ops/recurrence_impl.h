// What the files behind the linear attention interfaces (cyfa/ops/recurrence.h) share: which interface it is, its inputs under one set of
// names, and the backends' forward and backward.
#pragma once

#include "cyfa/kernels/recurrence/reference.h"
#include "cyfa/ops/recurrence.h"
#include "cyfa/ops/sequences.h"

namespace cyfa::ops {

using recurrence::Gate;

struct Recurrence {
  const char* op;
  Gate gate;
  bool delta;
};

// The interface of that name; throws std::out_of_range.
const Recurrence& recurrence_of(std::string_view op);

struct RecurrenceInputs {
  at::Tensor q, k, v;
  std::optional<at::Tensor> log_alpha;  // [B, T, H], [B, T, H, K] or [B, T, H, V] as the gate says; absent for kNone
  std::optional<at::Tensor> beta;       // [B, T, H] for the delta rules
  std::optional<at::Tensor> initial_state, cu_seqlens;
};

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

// Through torch's dispatcher, with autograd (recurrence_autograd.cc).
RecurrenceOutput run_recurrence(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceOptions& options);

// Inputs without the T dimension; state [B, H, K, V] is updated in place.
at::Tensor step_recurrence(const Recurrence& r, const RecurrenceInputs& in, const at::Tensor& state, const RecurrenceOptions& options);

}  // namespace cyfa::ops
