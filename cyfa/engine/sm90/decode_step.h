// A decoding step in few launches, on Hopper with matrices in bf16: parts of a model's step with what stands before and behind them, no
// autograd. Each says whether it was there for what it was given; if not, nothing has happened, and packed.h or the rest of cyfa/ops
// computes the same. Builds without CUDA have nothing of this.
//
// Weights and states must have been written before the last launch on the stream that did not begin early: launches here begin while those
// before them run, and read them at once. cyclic_flow_step and add_rms_norm begin early too, so that between such a step of a state and one
// here there must be another launch, as a model's embedding is.
#pragma once

#include "cyfa/engine/sm90/packed.h"

namespace cyfa::ops {

struct StepNorm {
  at::Tensor weight;  // fp32
  double eps = 0;
};

// A mixer with cyclic_flow at its heart.
struct FlowStep {
  FlowWeights w;                                           // as of flow_step
  at::Tensor readout_table, q_norm_weight, k_norm_weight;  // the last two may be undefined
  double norm_eps = 0;
  StepNorm o_norm;
  at::Tensor o_proj;
  at::Tensor k, v, clock;          // states, updated
  std::array<at::Tensor, 3> past;  // of the convolutions, updated
};

// Few rows x [B, D], by products of our own in which a row has the same bits alone and among others. `ahead`, where defined: the matrix
// that is read after this, which memory can bring to the cache while the chain of launches leaves it idle.
bool few_rows(const at::Tensor& x);
// x += mixer(norm(x)).
bool add_flow_step(const at::Tensor& x, const StepNorm& norm, const FlowStep& f, const at::Tensor& ahead = {});
// x += down (silu(g) u), [g, u] = gate_up norm(x).
bool add_swiglu_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& gate_up, const at::Tensor& down,
                     const at::Tensor& ahead = {});
// head norm(x) in fp32, or undefined.
at::Tensor head_step(const at::Tensor& x, const StepNorm& norm, const at::Tensor& head);

// Any batch: the mixer of x up to its last projection's input, [B, H V], or undefined.
at::Tensor flow_step_gated(const at::Tensor& x, const FlowStep& f);
// The same where x's projections y and the output's gate [B, H V] are there, of what takes_flow_step; gate_input: the columns of y that the
// gate is made of.
bool takes_flow_step(const at::Tensor& x, const FlowStep& f);
at::Tensor flow_step_of(const at::Tensor& y, const at::Tensor& gate, const FlowStep& f);
at::Tensor gate_input(const at::Tensor& y, const FlowStep& f);

}  // namespace cyfa::ops
