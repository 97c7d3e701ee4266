// Weights in the layout of the fused kernels: matrices that multiply the same input are concatenated along their rows. In training, each
// weight comes with the buffer that accumulates its gradient.
#pragma once

#include <array>
#include <memory>
#include <utility>

#include "cyfa/kernels/cyclic_flow/projection_layout.h"
#include "cyfa/mixers/cyclic_flow.h"
#include "cyfa/model/causal_lm.h"

namespace cyfa::fused {

struct Fp8Weight;  // fp8_products.h

// A weight and the buffer to which backward adds its gradient.
struct Accumulated {
  at::Tensor value;                     // matrices in bf16, everything else in fp32; not tracked by autograd
  at::Tensor grad;                      // fp32, same shape; undefined outside training
  std::shared_ptr<Fp8Weight> fp8 = {};  // null: products in bf16

  bool defined() const { return value.defined(); }
};

// Weights of a CyFA mixer in front of the operator: fused projection, convolutions, gates and output gate.
struct FlowWeights {
  cyclic_flow::ProjectionLayout layout;
  Accumulated projection;  // [layout.columns(), D]
  Accumulated conv[3];     // q, k, v: [width, 1, taps]
  Accumulated conv_bias[3];
  Accumulated gate_second;                     // [H V, rank]
  at::Tensor gate_bias;                        // [H V]: bf16 for steps, fp32 in training, where the gated norm accumulates its gradient
  Accumulated dt_bias, A_log, b_bias, d_bias;  // [H]
  bool clock_stop_gradient = false;            // no gradient flows from d to x

  // Gradients flow to x from the projection's columns before this one.
  int64_t felt_columns() const { return clock_stop_gradient ? layout.d() : layout.columns(); }
};

// Why the kernels do not support the width of config key `key`; empty if they do.
std::string norm_refusal(const char* key, int64_t width);
std::string columns_refusal(const char* key, int64_t width);
// Why the kernels cannot fuse this mixer; empty if they can.
std::string flow_refusal(const CyclicFlowSpec& spec);
// Why the kernels do not run on this device; empty if they do.
std::string device_refusal(at::Device device);

// The row layout of the fused projection.
cyclic_flow::ProjectionLayout layout_of(const CyclicFlowSpec& spec);
// The matrices of the fused projection, each with its first row.
std::array<std::pair<ParameterId, int>, 7> projection_members(const CyclicFlowSpec& spec);

}  // namespace cyfa::fused
