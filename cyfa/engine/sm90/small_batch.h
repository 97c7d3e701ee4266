// A decoding step of up to 16 sequences: five launches a layer, each a product fused with what stands before and after it. A row has the
// same bits alone and in any such batch.
//
// Launches use programmatic dependent launch: they start while their predecessor runs, and read weights and states before they wait for it.
// So weights and states must have been written before the last launch on the stream that did not start early. cyclic_flow_step and
// add_rms_norm start early too: between such a step of a state and one here there must be another launch, as a model's embedding is.
//
// Functions that return a reason return null once their work is queued; otherwise nothing has happened, and the caller computes the same by
// other means.
#pragma once

#include "cyfa/engine/sm90/fused_weights.h"

namespace cyfa::fused {

struct StepNorm {
  at::Tensor weight;  // fp32
  double eps = 0;
};

// A CyFA mixer and its states.
struct FlowStep {
  FlowWeights w;
  at::Tensor readout_table, q_norm_weight, k_norm_weight;  // the last two may be undefined
  double norm_eps = 0;
  StepNorm o_norm;
  at::Tensor o_proj;
  at::Tensor k, v, clock;           // states, updated
  std::array<at::Tensor, 3> tails;  // of the convolutions, updated
};

// Why x [B, D] is no small batch.
const char* small_batch_refusal(const at::Tensor& x);
// x += mixer(norm(x)). `ahead`, where defined: the matrix that the next launches read, which is prefetched into the L2 cache.
const char* add_flow_step(const at::Tensor& x, const StepNorm& norm, const FlowStep& f, const at::Tensor& ahead = {});
// x += down (silu(g) u), [g, u] = gate_and_up norm(x).
const char* add_swiglu_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& gate_and_up, const at::Tensor& down,
                            const at::Tensor& ahead = {});
// *logits = head norm(x), in fp32.
const char* head_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& head, at::Tensor* logits);

// Batches of any size: *o [B, H V] is the mixer of x up to the input of its output projection.
const char* flow_step_gated(const at::Tensor& x, const FlowStep& f, at::Tensor* o);
// The same from the fused projection y of x and the output gate [B, H V], where flow_step_refusal is null.
const char* flow_step_refusal(const at::Tensor& x, const FlowStep& f);
at::Tensor flow_step_of(const at::Tensor& y, const at::Tensor& gate, const FlowStep& f);
// The columns of y that the output gate is made of.
at::Tensor gate_input(const at::Tensor& y, const FlowWeights& w);

}  // namespace cyfa::fused
