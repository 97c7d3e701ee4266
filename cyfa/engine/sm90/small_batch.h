// Decode steps of up to 16 sequences: five launches per layer, each a matrix product with fused prologue and epilogue. A row's result is
// bitwise the same in any such batch.
//
// The kernels use programmatic dependent launch: they start while their predecessor still runs, and read weights and states before they
// wait for it. Weights and states must therefore have been written before the last ordinary launch on the stream. cyclic_flow_step and
// add_rms_norm also use programmatic dependent launch: between such a step of a state and a step here there must be an ordinary launch,
// such as the model's embedding.
//
// Functions that return `const char*` return null after enqueuing their work. Otherwise they return the reason why they cannot run and have
// done nothing; the caller then computes the same in another way.
#pragma once

#include "cyfa/engine/sm90/fused_weights.h"

namespace cyfa::fused {

// An RMSNorm.
struct StepNorm {
  at::Tensor weight;  // fp32
  double eps = 0;
};

// A CyFA mixer's weights and states.
struct FlowStep {
  FlowWeights w;
  at::Tensor readout_table, q_norm_weight, k_norm_weight;  // the last two may be undefined
  double norm_eps = 0;
  StepNorm o_norm;
  at::Tensor o_proj;
  at::Tensor k, v, clock;           // states, updated in place
  std::array<at::Tensor, 3> tails;  // states of the convolutions, updated in place
};

// Why x [B, D] cannot be stepped as a small batch; null if it can.
const char* small_batch_refusal(const at::Tensor& x);
// x += mixer(norm(x)). `ahead`, if defined, is the matrix that the next launches read; it is prefetched into L2.
const char* add_flow_step(const at::Tensor& x, const StepNorm& norm, const FlowStep& f, const at::Tensor& ahead = {});
// x += down (silu(g) u), [g, u] = gate_and_up norm(x).
const char* add_swiglu_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& gate_and_up, const at::Tensor& down,
                            const at::Tensor& ahead = {});
// *logits = head norm(x), in fp32.
const char* head_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& head, at::Tensor* logits);

// For any batch size: computes the mixer of x up to the input of its output projection, *o [B, H V].
const char* flow_step_gated(const at::Tensor& x, const FlowStep& f, at::Tensor* o);
// The same from the fused projection y of x and the output gate [B, H V]. Requires that flow_step_refusal returns null.
const char* flow_step_refusal(const at::Tensor& x, const FlowStep& f);
at::Tensor flow_step_of(const at::Tensor& y, const at::Tensor& gate, const FlowStep& f);
// The columns of y from which the output gate is computed.
at::Tensor gate_input(const at::Tensor& y, const FlowWeights& w);

}  // namespace cyfa::fused
