// Shared by the implementation files of cyfa/ops/recurrence/table.h: checks, results of a pass, and the backends that every op has.
#pragma once

#include "cyfa/ops/common/sequences.h"
#include "cyfa/ops/recurrence/table.h"

namespace cyfa::ops {

// The sizes of a call, by the names of cyfa/ops/recurrence/recurrence.h.
struct RecurrenceSizes {
  int64_t B, T, N, H, K, V;
  bool packed;
  at::ScalarType compute;  // fp32, or fp64 for fp64 inputs
};

// Options with every default filled in.
struct RecurrenceSettings {
  double scale = 1.0;
  SegmentSize size;
};

// Checks a gate of shape "H" and expands it over the tokens of q, which has `rank` dimensions. The expanded gate is fp64, the type in which
// gates are used, so that its gradient, which autograd sums over all tokens, loses no precision. If q has another rank, nothing is expanded
// and check_recurrence reports the error.
void expand_fixed_gate(const Recurrence& r, RecurrenceInputs& in, int64_t rank);

// Checks everything that can be checked without reading data, for inputs with an expanded gate. With `shared_keys`, the heads of v may be a
// multiple of those of q and k.
RecurrenceSizes check_recurrence(const Recurrence& r, const RecurrenceInputs& in, bool shared_keys = false);
RecurrenceSizes recurrence_sizes(const RecurrenceInputs& in);  // requires checked inputs
std::vector<int64_t> recurrence_offsets(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSizes& s);

// The results of a backend's forward.
struct RecurrenceForward {
  at::Tensor o, final_state;
  std::vector<at::Tensor> saved;  // for backward; opaque to everything but the backend
};

// The gradient of an absent input is undefined; initial_state is always defined.
struct RecurrenceGradients {
  at::Tensor q, k, v, log_alpha, beta, initial_state;
};

// Uninitialised results; `saved` comes from the backend.
RecurrenceForward empty_forward(const RecurrenceInputs& in, const RecurrenceSizes& s, std::vector<at::Tensor> saved);
RecurrenceGradients empty_gradients(const RecurrenceInputs& in, const RecurrenceSizes& s);

// Why a backend that has keys for every head refuses these inputs; empty if it does not.
std::string shared_keys_refusal(const RecurrenceInputs& in);

// Chunk-wise form on ATen, for any device and type. Its step is a kernel on a CPU and a few ATen calls elsewhere.
RecurrenceBackend recurrence_portable();
at::Tensor portable_step(const Recurrence& r, const RecurrenceInputs& in, const at::Tensor& state, double scale);

// bf16 on Hopper, in builds with CUDA; it has no step.
RecurrenceBackend recurrence_sm90();

// The fp64 token loop on the CPU; it has no step.
RecurrenceBackend recurrence_reference();

}  // namespace cyfa::ops
