// The mixer of Cyclic Flow Attention (the paper's section 3 and its published checkpoints): projections, short convolutions, gates and
// clock, then ops::cyclic_flow, then per-head RMSNorm of m times the output, a sigmoid gate and the output projection.
#pragma once

#include "cyfa/mixers/parts.h"
#include "cyfa/ops/cyclic_flow/reads.h"

namespace cyfa {

// The mixer's config keys, including the paper's ablations. Defaults are those of the published models.
struct CyclicFlowConfig : QkvConfig {
  int64_t slots = 128;            // num_slots: M slots are stored, m = M - 1 are active
  std::array<bool, 3> silu = {};  // silu_streams: which of q, k and v take SiLU after the convolution
  bool qk_norm = true;            // use_qk_norm
  bool forget_gate = true;        // use_forget_gate: false fixes alpha = 1
  bool constant_clock = false;    // clock: false for "token"; true for "constant" (one learned increment per head, sigmoid(b)) and "fixed"
  double rho = 0;                 // rho: tokens per slot of a "fixed" clock, whose increments are 1 / rho; 0 for the other clocks
  bool clock_stop_gradient = true;  // clock_stop_gradient: no gradient flows from the clock to the mixer's input
  bool learned_readout = true;      // readout: "learned", or "identity" for R = I
};

// What an engine needs to fuse the mixer: its config, its parameters and the indices of its states. Parameters that the config does not
// use are meaningless.
struct CyclicFlowSpec {
  CyclicFlowConfig config;
  std::array<ConvProjection, 3> qkv;
  ParameterId q_norm = 0, k_norm = 0, a_proj = 0, dt_bias = 0, A_log = 0, d_proj = 0, d_bias = 0, b_proj = 0, b_bias = 0, readout = 0;
  ParameterId gate_first = 0, gate_second = 0, gate_bias = 0;  // low-rank output gate: two factors and a bias
  ParameterId o_norm = 0, o_proj = 0;
  size_t keys = 0, values = 0, clock = 0;  // indices of the states; the convolutions' are qkv[i].part()

  // The eps of the output norm applied to o: RMSNorm(m o) with eps equals RMSNorm(o) with eps / m^2.
  double output_eps() const;
  // The readout matrices R [H, m, m]; identities if the readout is not learned.
  at::Tensor readout_matrices(const Weights& w, at::Device device) const;
};

// The spec of a cyclic flow mixer; null for any other mixer.
const CyclicFlowSpec* cyclic_flow_spec(const Mixer& mixer);

// How the heads of a cyclic flow mixer read, over the call's x [B, T, D] from an empty state; nullopt for any other mixer. No autograd.
std::optional<ops::CyclicFlowReads> cyclic_flow_reads(const Mixer& mixer, Call& call);

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_cyclic_flow(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
