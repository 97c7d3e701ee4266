// The mixer of Cyclic Flow Attention (the paper's section 3, and its published checkpoints): projections, ShortConv, gates and clock in
// front of ops::cyclic_flow; the output times m, head-wise RMSNorm, sigmoid gate and output projection after it.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// The config keys of the mixer, with the ablations of the paper. Defaults are those of the published models.
struct CyclicFlowConfig {
  int64_t hidden_size = 2048;
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
  int64_t heads = 8;         // num_heads
  int64_t K = 256, V = 256;  // head_dim * expand_k, head_dim * expand_v
  int64_t slots = 128;       // num_slots: M, stored; m = M - 1 are active
  bool short_conv = true;    // use_short_conv
  int64_t conv_size = 4;
  bool conv_bias = false;
  bool conv_silu = false;           // conv_activation: null, or "silu" after the convolution
  bool qk_norm = true;              // use_qk_norm
  bool forget_gate = true;          // use_forget_gate: false fixes alpha = 1
  bool constant_clock = false;      // clock: "token", or "constant" for one increment per head, sigmoid(b), or "fixed"
  double rho = 0;                   // rho: tokens a slot of a fixed clock, whose increments are 1 / rho; 0: none
  bool clock_stop_gradient = true;  // clock_stop_gradient: the clock's input takes no gradient
  bool learned_readout = true;      // readout: "learned", or "identity" for R = I
};

MixerFactory read_cyclic_flow(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
