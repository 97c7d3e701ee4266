// What the files behind cyfa/ops/recurrence/table.h share: checks, results of a pass, and the backends that every op has.
#pragma once

#include "cyfa/ops/common/sequences.h"
#include "cyfa/ops/recurrence/table.h"

namespace cyfa::ops {

struct RecurrenceSizes {
  int64_t B, T, N, H, K, V;
  bool packed;
  at::ScalarType compute;  // fp32, fp64 for fp64 inputs
};

// Options with every default filled in.
struct RecurrenceSettings {
  double scale = 1.0;
  SegmentSize size;
};

// Checks a gate of shape "H" and expands it over the tokens of q, which has `rank` dimensions. The copy is fp64, in which the gates are
// used, so that its gradient, a sum over all tokens, loses nothing. Autograd does the summing. A q of another rank is left to the checks.
void expand_fixed_gate(const Recurrence& r, RecurrenceInputs& in, int64_t rank);

// Checks all that can be checked without reading data, of inputs with an expanded gate.
RecurrenceSizes check_recurrence(const Recurrence& r, const RecurrenceInputs& in);
RecurrenceSizes recurrence_sizes(const RecurrenceInputs& in);  // of inputs that have been checked
std::vector<int64_t> recurrence_offsets(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSizes& s);

struct RecurrenceForward {
  at::Tensor o, final_state;
  std::vector<at::Tensor> saved;  // for backward; only the backend knows what it is
};

// Undefined where there is no such input; initial_state always.
struct RecurrenceGradients {
  at::Tensor q, k, v, log_alpha, beta, initial_state;
};

// Uninitialised results; `saved` comes from the backend.
RecurrenceForward empty_forward(const RecurrenceInputs& in, const RecurrenceSizes& s, std::vector<at::Tensor> saved);
RecurrenceGradients empty_gradients(const RecurrenceInputs& in, const RecurrenceSizes& s);

// Chunk-wise on ATen, for any device and type; its step is a kernel on a CPU and a few ATen calls elsewhere.
RecurrenceBackend recurrence_portable();
at::Tensor portable_step(const Recurrence& r, const RecurrenceInputs& in, const at::Tensor& state, double scale);

// The fp64 token loop on the CPU; it has no step.
RecurrenceBackend recurrence_reference();

}  // namespace cyfa::ops
