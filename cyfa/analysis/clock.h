// The clocks of a model: which heads have one, and a forward pass that shows or replaces their increments. Every analysis is built on it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cyfa/model/causal_lm.h"

namespace cyfa::analysis {

// Reports how far an analysis is: steps done, of all.
using Progress = std::function<void(int64_t done, int64_t all)>;

// A head with a clock.
struct Head {
  size_t layer = 0;
  int64_t head = 0;

  std::string name() const;  // "L15H3"
  bool operator==(const Head&) const = default;
};

// A layer of cyclic flow heads. `first` counts the heads of the layers before it: head h of this layer is the model's clock first + h.
struct ClockLayer {
  size_t layer = 0;
  int64_t first = 0, heads = 0;
  int64_t slots = 0;  // m
};

// Whether a layer of the model has a clock.
bool has_clock(const CausalLM& model);
// The layers with a clock, in order; layers with other mixers have none. Throws std::invalid_argument if the model has no such layer.
std::vector<ClockLayer> clock_layers(const CausalLM& model);
// Their heads, in order.
std::vector<Head> clock_heads(const CausalLM& model);

// Given the increments [B, T, H] that a layer has computed, returns the ones that it is to use.
using ClockHook = std::function<at::Tensor(const ClockLayer& layer, const at::Tensor& delta)>;

// The hidden state [B, T, D] before the final norm, as CausalLM::forward() gives it, with `hook` called in every layer with a clock.
at::Tensor forward_with_clock(const CausalLM& model, const Weights& w, const at::Tensor& ids, const ClockHook& hook);

// Mean cross-entropy of next-token prediction for each sequence of ids [N, T], T >= 2: N numbers.
std::vector<double> sequence_losses(const CausalLM& model, const Weights& w, const at::Tensor& ids, const ClockHook& hook);

}  // namespace cyfa::analysis
