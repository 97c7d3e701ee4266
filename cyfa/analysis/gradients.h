// Gradients of the loss by groups of parameters, with and without the clock's stop-gradient, and what the clock's own gradient is made of
// (the paper's appendix "Gradient Propagation Through the Learned Clock"). docs/probe.md defines every number.
#pragma once

#include <array>

#include "cyfa/analysis/clock.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::analysis {

// The same number of two backward passes of one forward pass: with the clock's stop-gradient, and without it, whatever the model's config
// says. The forward passes are equal, bit for bit. `without` is NaN for a model without a clock.
struct Paired {
  double with = 0, without = 0;
};

// Parameters of one kind, over all layers: "embeddings", "head", "norms", "mlp", "clock" (its projection and bias), or a part of a mixer by
// its name in checkpoints, as "v_proj".
struct GradientGroup {
  std::string name;
  int64_t parameters = 0;
  Paired norm = {};
};

// The derivatives of the loss by the clock of each token, lambda_t, along each of the three ways in which an output depends on it.
struct ClockPaths {
  at::Tensor key;      // the temporal write vectors of the key state
  at::Tensor value;    // those of the value state
  at::Tensor readout;  // the rotations before and after the softmax over slots
};                     // each [B, T, H] in double

// The paths of cyclic_flow(in, options) on whole sequences from an empty state, given the gradient of its output. In double precision.
ClockPaths clock_paths(const ops::CyclicFlowInputs& in, const ops::CyclicFlowOptions& options, const at::Tensor& grad_o);

// The three paths, key, value and readout, each by itself, and against each other.
struct PathNorms {
  std::array<double, 3> norm = {};
  std::array<double, 3> cosine = {};  // of the pairs key-value, key-readout and value-readout
  double left = 0;                    // the norm of their sum relative to the sum of their norms: 1 if they agree
};

// The gradient of one layer's clock, with the stop-gradient. Norms are over tokens and heads.
struct ClockGradient {
  size_t layer = 0;
  double clock = 0;      // of dL/dlambda
  double increment = 0;  // of dL/ddelta, its sum over the token and all later ones
  double gain = 0;       // increment / clock
  // Of the gradient of the clock's projection and bias, the sum of the tokens' gradients, and that norm relative to the root of the sum of
  // the tokens' squared norms. Zero and NaN for a clock without parameters.
  double projection = 0, alignment = 0;
  PathNorms at_clock = {};       // of dL/dlambda
  PathNorms at_projection = {};  // of the gradient of the projection and bias; NaN for a clock without parameters
  double mismatch = 0;  // the norm of the paths' sum minus the dL/dlambda of the model's own backward pass, relative to the latter's
};

// What one text gives. Norms are means over the sequences of the norm of each.
struct Gradients {
  int64_t sequences = 0, tokens = 0;
  double loss = 0;                 // mean cross-entropy of next-token prediction, nats
  Paired all = {};                 // of all parameters
  Paired clock = {};               // of the clocks' projections and biases
  Paired rest = {};                // of all others
  std::vector<Paired> rests = {};  // the same of each sequence
  Paired share = {};               // the clocks' part of the squared norm
  std::vector<GradientGroup> groups = {};
  std::vector<Paired> layers = {};         // of each layer's parameters but the clock's
  std::vector<ClockGradient> clocks = {};  // of each layer with a clock
};

// Over ids [N, T], a sequence at a time, T >= 2. Any model: one without a clock has no `clocks`.
Gradients measure_gradients(const CausalLM& model, const Weights& w, const at::Tensor& ids, const Progress& progress = {});

}  // namespace cyfa::analysis
