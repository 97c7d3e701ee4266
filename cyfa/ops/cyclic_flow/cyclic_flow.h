// Cyclic Flow Attention: a slot memory in which a learned clock moves writes through relative time (section 3 of the paper). Used by the
// cyclic_flow mixer, the program and, as torch.ops.cyfa.cyclic_flow, by Python.
//
//   CyclicFlowInputs in{.q = q, .k = k, .v = v, .log_alpha = log_alpha, .delta = delta, .beta = beta, .readout = readout};
//   CyclicFlowOutput out = cyclic_flow(in);             // out.o, out.final_state, out.backend
//   out.o.sum().backward();                             // gradients of every input, including initial state and norm weights
//
// Dimensions: B batch, T tokens, N sequences (B, or as many as cu_seqlens bounds), H heads, K and V widths of a head, M stored slots,
// m = M - 1 active slots (odd). Types: q, k and v are all fp64, all fp32 or all bf16; states are fp32 (fp64 for fp64), the clock is fp64.
#pragma once

#include <torch/types.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cyfa/ops/common/backend.h"

namespace cyfa::ops {

// The memory of N sequences in absolute-clock coordinates (eq:cyfa-absolute-coordinates).
struct CyclicFlowState {
  at::Tensor k;      // [N, H, K, M] fp32 (fp64 for fp64 inputs)
  at::Tensor v;      // [N, H, M, V] likewise
  at::Tensor clock;  // [N, H] fp64, exact over millions of tokens; fp32 is accepted as an input
};

// Arguments of cyclic_flow.
struct CyclicFlowInputs {
  at::Tensor q;                                  // [B, T, H, K]
  at::Tensor k;                                  // [B, T, H, K]
  at::Tensor v;                                  // [B, T, H, V]
  at::Tensor log_alpha;                          // [B, T, H] logarithm of the forget gate, from -infinity to 0
  at::Tensor delta;                              // [B, T, H] clock increments
  at::Tensor beta;                               // [B, T, H] write strengths
  at::Tensor readout;                            // [H, m, m]
  std::optional<at::Tensor> q_norm_weight;       // [K]; absent: q is used as it comes
  std::optional<at::Tensor> k_norm_weight;       // [K]; absent: k is used as it comes
  std::optional<CyclicFlowState> initial_state;  // absent: empty memory, clock 0; never changed
  std::optional<at::Tensor> cu_seqlens;          // [N + 1] bounds of packed sequences (B = 1); empty sequences are allowed
};

// Options of cyclic_flow; the defaults suit training.
struct CyclicFlowOptions {
  Backend backend = Backend::kAuto;
  std::optional<double> scale;  // dot-product scale; absent: K^-0.5
  double norm_eps = 1e-6;
  int64_t chunk = 0;           // tokens per chunk (portable); 0: the measured default
  int64_t segment_chunks = 0;  // chunks between the states that forward saves for backward (portable); 0: the measured default
  // Save the slot scores for backward (M numbers per token and head) instead of recomputing them. On sm90 this applies to everything that
  // backward needs: 1.3 KB per token and head (341 MB at B = 32, T = 2048, H = 4), or else backward runs forward again.
  bool save_scores = true;
  bool final_state = true;  // compute the state after the last token; training does not need it
  // If set, q, k and v are not kept for backward: it calls this for the same values again.
  std::function<std::array<at::Tensor, 3>()> again = {};
};

// Results of cyclic_flow.
struct CyclicFlowOutput {
  at::Tensor o;                      // [B, T, H, V], type of v
  CyclicFlowState final_state;       // undefined if options.final_state is false
  Backend backend = Backend::kAuto;  // the backend that ran
};

// The operator over whole sequences. Throws ArgumentError for invalid input before anything is computed.
CyclicFlowOutput cyclic_flow(const CyclicFlowInputs& inputs, const CyclicFlowOptions& options = {});

// Whether each backend takes these inputs, and why not, fastest first.
std::vector<BackendOffer> cyclic_flow_backends(const CyclicFlowInputs& inputs);

// R Phi in stored order, [H, M, M] fp32 (fp64 for fp64): rows beyond m and column 1 are zero. Steps take it; a model computes it once.
at::Tensor cyclic_flow_readout_table(const at::Tensor& readout);

// The slots' contents by relative age, [N, H, m, X]: rows [N, H, M, X] in absolute-clock coordinates (state.v, or state.k transposed) are
// rotated by the clock [N, H] and transformed back from Fourier coordinates.
at::Tensor cyclic_flow_slots(const at::Tensor& rows, const at::Tensor& clock);

// Arguments of a decode step: one token for each of B states. The states are contiguous, fp32 with the clock in fp64. k and v may both be
// bf16 instead: half the memory, rounded at every step (docs/operator.md, "States in bf16").
struct CyclicFlowStepInputs {
  at::Tensor q;                             // [B, H, K]
  at::Tensor k;                             // [B, H, K]
  at::Tensor v;                             // [B, H, V]
  at::Tensor log_alpha;                     // [B, H]
  at::Tensor delta;                         // [B, H]
  at::Tensor beta;                          // [B, H]
  at::Tensor readout_table;                 // [H, M, M], from cyclic_flow_readout_table
  std::optional<at::Tensor> q_norm_weight;  // [K]
  std::optional<at::Tensor> k_norm_weight;  // [K]
};

// Updates `state` in place and returns o [B, H, V], type of v. No autograd. Reads only backend, scale and norm_eps of the options. The sm90
// backend is a single kernel launch; portable is a vectorised kernel on a CPU and a few ATen calls on other devices; there is no reference
// step.
at::Tensor cyclic_flow_step(const CyclicFlowStepInputs& inputs, const CyclicFlowState& state, const CyclicFlowOptions& options = {});

// Whether each backend takes such a step, and why not, fastest first.
std::vector<BackendOffer> cyclic_flow_step_backends(const CyclicFlowStepInputs& inputs, const CyclicFlowState& state);

}  // namespace cyfa::ops
