// Cases of the ops: inputs of a given size in the ranges that models show, one call that returns outputs and gradients by name, and
// what a call costs. Checks and benchmarks share them.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

#include "apps/accuracy.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/recurrence/table.h"

namespace cyfa::app {

// One layer of the 400M model, a sequence of its training length.
struct OpShape {
  int64_t B = 1, T = 2048, H = 4, K = 256, V = 256, M = 128;
};

at::ScalarType parse_dtype(const std::string& name);  // "fp32", "fp64", "bf16"
const char* dtype_name(at::ScalarType dtype);
at::Device parse_device(const std::string& name);  // "cpu" or "cuda"; throws if there is no GPU

// q, k, v of dtype; gates, readout and norm weights in fp32 (fp64 for fp64). Gates are drawn as the published initialisation makes
// them: log_alpha = -A dt with A in (0, 16) per head and dt in (.001, .1), beta and delta around one half; the readout is near
// the identity. Equal seeds give equal inputs on every device.
ops::CyclicFlowInputs random_cyclic_flow(const OpShape& shape, at::ScalarType dtype, at::Device device, uint64_t seed = 1);
// The same for any of ops::recurrences(); the delta rules get keys of unit length.
ops::RecurrenceInputs random_recurrence(const ops::Recurrence& r, const OpShape& shape, at::ScalarType dtype, at::Device device,
                                        uint64_t seed = 1);

// Token t of the inputs, and the memory that it finds at the start; the readout table is made on every call.
ops::CyclicFlowStepInputs step_inputs(const ops::CyclicFlowInputs& in, int64_t t);
ops::CyclicFlowState first_state(const ops::CyclicFlowInputs& in);

at::Tensor random_normal(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device, uint64_t seed);

// The inputs as leaves of autograd.
ops::CyclicFlowInputs with_gradients(const ops::CyclicFlowInputs& in);
ops::RecurrenceInputs with_gradients(const ops::RecurrenceInputs& in);
std::vector<at::Tensor> leaves(const ops::CyclicFlowInputs& in);
std::vector<at::Tensor> leaves(const ops::RecurrenceInputs& in);

// Gradients coming in; undefined means none. With no gradient at all, only the outputs are computed.
struct CyclicFlowUpstream {
  at::Tensor o;
  ops::CyclicFlowState final_state;

  bool any() const { return o.defined() || final_state.k.defined() || final_state.v.defined() || final_state.clock.defined(); }
};

// Why a backend that takes these inputs would not take them with gradients asked for; empty if it would.
std::string gradient_refusal(const ops::CyclicFlowInputs& in, ops::Backend backend);

// Outputs and gradients under the names of the vector files: o, final_k, final_v, final_lambda, d_q, d_k, d_v, d_g, d_delta, d_beta,
// d_readout, d_q_norm_weight, d_k_norm_weight, d_initial_k, d_initial_v, d_initial_lambda.
NamedTensors run_cyclic_flow(const ops::CyclicFlowInputs& in, const CyclicFlowUpstream& upstream, const ops::CyclicFlowOptions& options);
// o, final_k, final_v, final_lambda, token by token with cyclic_flow_step from the given state or an empty one.
NamedTensors run_steps(const ops::CyclicFlowInputs& in, const ops::CyclicFlowOptions& options);
// o, final_state, d_q, d_k, d_v, d_g, d_beta, from a gradient of o; the last two where there is such an input.
NamedTensors run_recurrence(const ops::Recurrence& r, const ops::RecurrenceInputs& in, const at::Tensor& grad_o,
                            const ops::RecurrenceOptions& options);

// Arithmetic of the chunk-wise form at 64 tokens a chunk, whatever the chunk of a run, so that figures can be compared. The terms are
// those of docs/operator.md, in their order; backward counts P and P' again and keeps the scores.
struct Flops {
  double forward = 0;
  double backward = 0;
};
Flops cyclic_flow_flops(const OpShape& shape);
Flops recurrence_flops(const ops::Recurrence& r, const OpShape& shape);

// State read and written by one step of all B * H heads.
double step_bytes(const OpShape& shape);

}  // namespace cyfa::app
