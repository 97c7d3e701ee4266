// The contract of a mixer: what a block needs of the part that moves information between tokens.
//
// A mixer is a description. It declares its parameters and states once, and computes with the tensors of the call that it is handed. The
// same code therefore runs whole sequences and decoding steps, with stored weights, with copies in a compute type and with gradients, on
// any device; and it can be shared between layers and threads.
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cyfa {

class Call;

// One of the tensors that a sequence carries from token to token.
struct StateSpec {
  std::string name;
  std::vector<int64_t> shape;  // of one sequence
  at::ScalarType dtype = at::kFloat;
  bool memory = true;   // counted as recurrent state in the paper's tables (the convolution's tail and the clock are not)
  bool grows = false;   // the first dimension counts stored tokens: 0 at the start, more as the sequence grows
  bool narrow = false;  // a step also takes it in bf16

  bool fits(at::IntArrayRef sizes) const {
    return grows ? sizes.slice(1) == at::IntArrayRef(shape).slice(1) : sizes == at::IntArrayRef(shape);
  }
};

// The state of N sequences in one layer: a tensor [N, ...] for each StateSpec, in their order.
using MixerState = std::vector<at::Tensor>;

// A look into the memory of N sequences, for pictures and analyses.
struct MemoryView {
  at::Tensor clock;   // [N, H]
  at::Tensor energy;  // [N, H, m] of the values in each slot, the newest first
};

using Figures = std::vector<std::pair<std::string, double>>;

class Mixer {
 public:
  virtual ~Mixer() = default;

  const std::vector<StateSpec>& state() const { return state_; }

  // The call's x [.., D] to y [.., D]. Differentiable in the weights, x and the initial state, except in a step.
  virtual at::Tensor mix(Call& call) const = 0;

  // Operations of the recurrence itself for one token, in training; projections are counted from the table of parameters.
  virtual double flops_per_token() const = 0;

  // How the memory is used on the call's x [B, T, D], from an empty memory: named figures for the metrics of a run. Without autograd.
  virtual Figures health(Call&) const { return {}; }

  virtual std::optional<MemoryView> view(const MixerState&) const { return std::nullopt; }

  // Why a step needs the host between its operations (it reads values back, or copies from the host's memory); empty if it only queues
  // work, so that the operations of one step can be recorded and replayed for the next.
  virtual std::string needs_host() const { return {}; }

 protected:
  // Adds a tensor to the state and returns its place.
  size_t keep(StateSpec spec) {
    state_.push_back(std::move(spec));
    return state_.size() - 1;
  }
  size_t keep_memory(std::vector<int64_t> shape, const char* name = "memory") { return keep({.name = name, .shape = std::move(shape)}); }
  size_t keep_position() { return keep({.name = "position", .shape = {}, .dtype = at::kLong, .memory = false}); }

 private:
  std::vector<StateSpec> state_;
};

}  // namespace cyfa
