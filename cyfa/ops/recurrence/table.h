// The table of linear-attention ops (the paper's Table 1), and the calls that take an entry of it:
//
//   const Recurrence& gla = recurrence_of("row_gated_la");
//   RecurrenceOutput out = run_recurrence(gla, {.q = q, .k = k, .v = v, .log_alpha = log_alpha});
//
// The entry is the only description of an op. Dispatcher registration, argument checks, backend choice, tests, `cyfa doctor` and
// `cyfa bench op` loop over the table. To add an op, add its entry to table.cc, its update rule to the fp64 reference
// (cyfa/kernels/recurrence/reference.h) and its inputs to the op cases (cyfa/ops/cases/op_case.cc). To add a GPU kernel for an op, add a
// RecurrenceBackend to its entry.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cyfa/kernels/recurrence/reference.h"
#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa::ops {

using recurrence::Gate;

// The tensors of a call.
struct RecurrenceInputs {
  at::Tensor q, k;  // [B, T, H, K]
  at::Tensor v;     // [B, T, H, V]
  // Given if and only if the op takes them, with the shapes in its `arguments`.
  std::optional<at::Tensor> log_alpha = {};  // log_alpha or log_gamma
  std::optional<at::Tensor> beta = {};
  std::optional<at::Tensor> initial_state = {};  // [N, H, K, V]; default: zeros
  std::optional<at::Tensor> cu_seqlens = {};     // [N + 1] bounds of packed sequences (B = 1); empty sequences are allowed
};

// A tensor that an op takes in addition to q, k and v.
struct RecurrenceArgument {
  const char* name;   // in the dispatcher's schema and in error messages
  const char* shape;  // one letter per dimension: "H", "BTH", "BTHK" or "BTHV"; a step leaves T out
  std::optional<at::Tensor> RecurrenceInputs::*member;
};

struct Recurrence;
struct RecurrenceForward;    // cyfa/ops/recurrence/impl.h
struct RecurrenceGradients;  // likewise
struct RecurrenceSettings;   // likewise
struct RecurrenceSizes;      // likewise
struct SegmentPass;          // cyfa/ops/recurrence/passes.h

// One implementation of an op. Its functions get inputs that have been checked, with a gate of shape "H" expanded over the tokens.
struct RecurrenceBackend {
  Backend id;
  // Why the backend does not support these inputs, which may lack the T dimension (a step); empty if it does.
  std::string (*refusal)(const Recurrence& r, const RecurrenceInputs& in);
  RecurrenceForward (*forward)(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings);
  // `saved` are the tensors saved by forward. An undefined gradient means zero.
  RecurrenceGradients (*backward)(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings, at::TensorList saved,
                                  const at::Tensor& grad_o, const at::Tensor& grad_final_state);
  // Uninitialised tensors of the shapes that forward saves, for a q of these options: device and type.
  std::vector<at::Tensor> (*empty_saved)(const at::TensorOptions& q, const RecurrenceSizes& s, const RecurrenceSettings& settings);
  // Null if the backend has no step.
  at::Tensor (*step)(const Recurrence& r, const RecurrenceInputs& in, const at::Tensor& state, double scale);
};

// An entry of the table: one op.
struct Recurrence {
  const char* op;          // its name in C++, in torch.ops.cyfa and on the command line
  const char* definition;  // the update of the state; o_t = S_t^T (scale q_t) for every op
  Gate gate;               // how the forget gate acts on S
  bool delta;              // writes beta_t (v_t - S^T k_t) in place of v_t; for bounded states the keys have at most unit length
  std::vector<RecurrenceArgument> arguments;  // in schema order, after q, k and v
  const SegmentPass* pass;                    // the chunk-wise form, for the portable backend
  std::vector<RecurrenceBackend> backends;    // fastest first
};

// The table.
const std::vector<Recurrence>& recurrences();
const Recurrence& recurrence_of(std::string_view op);  // throws ArgumentError that lists the names

// Runs an op on whole sequences.
RecurrenceOutput run_recurrence(const Recurrence& r, RecurrenceInputs inputs, const RecurrenceOptions& options = {});

// One token for each of B states, without autograd. The inputs have no T dimension; `state` [B, H, K, V] is fp32 and contiguous and is
// updated in place. Returns o [B, H, V], type of v. Only options.scale is used. On a CPU, a sequence's result is bitwise independent of the
// rest of the batch.
at::Tensor step_recurrence(const Recurrence& r, RecurrenceInputs inputs, const at::Tensor& state, const RecurrenceOptions& options = {});

// Whether each backend supports these inputs, fastest first. Throws ArgumentError for bad input. Backends that the op does not have are
// listed with a refusal.
std::vector<BackendOffer> recurrence_backends(const Recurrence& r, RecurrenceInputs inputs);

}  // namespace cyfa::ops
