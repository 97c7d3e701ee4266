// Weights as the fused kernels read them: matrices that are multiplied with the same input stand one below the other in one matrix, and in
// training each comes with the array that its gradient is summed in.
#pragma once

#include <array>
#include <utility>

#include "cyfa/kernels/cyclic_flow/projection_layout.h"
#include "cyfa/mixers/cyclic_flow.h"
#include "cyfa/model/causal_lm.h"

namespace cyfa::fused {

// A weight, and where backward adds its gradient; the latter in training alone.
struct Accumulated {
  at::Tensor value;  // matrices in bf16, everything else in fp32; not recorded by autograd
  at::Tensor grad;   // fp32, of the same shape

  bool defined() const { return value.defined(); }
};

// A CyFA mixer up to the operator: the fused projection, convolutions, gates, the output gate.
struct FlowWeights {
  cyclic_flow::ProjectionLayout layout;
  Accumulated projection;  // [layout.columns(), D]
  Accumulated conv[3];     // q, k, v: [width, 1, taps]
  Accumulated conv_bias[3];
  Accumulated gate_second;                     // [H V, rank]
  at::Tensor gate_bias;                        // [H V]: bf16 for steps; in training fp32, and the gated norm adds up its gradient
  Accumulated dt_bias, A_log, b_bias, d_bias;  // [H]
  bool clock_stop_gradient = false;            // x takes no gradient from d
};

// What the kernels ask of widths. Empty, or why not.
std::string norm_refusal(const char* key, int64_t width);
std::string columns_refusal(const char* key, int64_t width);
// Why the kernels have no fused form of this mixer; empty if they have.
std::string flow_refusal(const CyclicFlowSpec& spec);
// Why the kernels do not run on this device; empty if they do.
std::string device_refusal(at::Device device);

cyclic_flow::ProjectionLayout layout_of(const CyclicFlowSpec& spec);
// The members of the fused projection with their first rows.
std::array<std::pair<ParameterId, int>, 7> projection_members(const CyclicFlowSpec& spec);

}  // namespace cyfa::fused
