// The mixer of Cyclic Flow Attention (the paper's section 3, and its published checkpoints): projections, ShortConv, gates and clock in
// front of ops::cyclic_flow; the output times m, head-wise RMSNorm, sigmoid gate and output projection after it.
#pragma once

#include "cyfa/mixers/parts.h"

namespace cyfa {

// The config keys of the mixer, with the ablations of the paper. Defaults are those of the published models.
struct CyclicFlowConfig : QkvConfig {
  int64_t slots = 128;              // num_slots: M, stored; m = M - 1 are active
  bool conv_silu = false;           // conv_activation: "none", or "silu" after the convolution
  bool qk_norm = true;              // use_qk_norm
  bool forget_gate = true;          // use_forget_gate: false fixes alpha = 1
  bool constant_clock = false;      // clock: "token", or "constant" for one increment per head, sigmoid(b), or "fixed"
  double rho = 0;                   // rho: tokens a slot of a fixed clock, whose increments are 1 / rho; 0: none
  bool clock_stop_gradient = true;  // clock_stop_gradient: the clock's input takes no gradient
  bool learned_readout = true;      // readout: "learned", or "identity" for R = I
};

// What an engine that fuses the mixer needs to know of it: config, parameters, places of its states. Parameters that the config rules out
// have no meaning.
struct CyclicFlowSpec {
  CyclicFlowConfig config;
  std::array<ConvProjection, 3> qkv;
  ParameterId q_norm = 0, k_norm = 0, a_proj = 0, dt_bias = 0, A_log = 0, d_proj = 0, d_bias = 0, b_proj = 0, b_bias = 0, readout = 0;
  ParameterId gate_first = 0, gate_second = 0, gate_bias = 0;  // the output gate: two factors of low rank
  ParameterId o_norm = 0, o_proj = 0;
  size_t keys = 0, values = 0, clock = 0;  // states; those of the convolutions: qkv[i].part()

  // RMSNorm(m o) with eps is RMSNorm(o) with eps / m^2.
  double output_eps() const;
  at::Tensor readout_matrices(const Weights& w, at::Device device) const;  // [H, m, m]
};

// Null where the mixer is another one.
const CyclicFlowSpec* cyclic_flow_spec(const Mixer& mixer);

MixerFactory read_cyclic_flow(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
