// The interface of a mixer, the part of a block that moves information between tokens.
//
// A mixer holds no tensors. It declares its parameters and states once, and computes with the weights and states of the Call it is given.
// The same code therefore runs forwards and decode steps, with stored weights or copies in a compute type, with or without gradients, on
// any device. A mixer can be shared between layers and threads.
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

namespace cyfa {

class Call;

// One tensor of a mixer's recurrent state.
struct StateSpec {
  std::string name;
  std::vector<int64_t> shape;  // of one sequence
  at::ScalarType dtype = at::kFloat;
  bool memory = true;   // counted as recurrent state in the paper's tables (convolution states and the clock are not)
  bool grows = false;   // the first dimension is the number of stored tokens: 0 at the start, growing with the sequence (KV cache)
  bool narrow = false;  // decode steps also accept it in bf16

  // Whether `sizes` is a valid shape for one sequence.
  bool fits(at::IntArrayRef sizes) const {
    return grows ? sizes.slice(1) == at::IntArrayRef(shape).slice(1) : sizes == at::IntArrayRef(shape);
  }
};

// The state of N sequences in one layer: one tensor [N, ...] for each StateSpec, in the same order.
using MixerState = std::vector<at::Tensor>;

// A view of the slots of N sequences, for plots and analysis.
struct MemoryView {
  at::Tensor clock;   // [N, H]
  at::Tensor energy;  // [N, H, m]: squared norm of each slot's value, newest slot first
};

// A named metric over tokens, heads and sequences, and how the metrics of several layers combine.
struct Figure {
  enum class Over { kMean, kLeast, kMost };
  std::string name;
  double value = 0;
  Over over = Over::kMean;
};
using Figures = std::vector<Figure>;

// Base class of all mixers.
class Mixer {
 public:
  virtual ~Mixer() = default;

  // The tensors of the state.
  const std::vector<StateSpec>& state() const { return state_; }

  // Maps the call's x [.., D] to y [.., D]. A forward is differentiable in the weights, x and the initial state; a decode step is not.
  virtual at::Tensor mix(Call& call) const = 0;

  // FLOPs per token of the recurrence alone, in a training forward. The projections' FLOPs are derived from the parameter table.
  virtual double flops_per_token() const = 0;

  // Training metrics about the use of the state, on the call's x [B, T, D] from an empty state. No autograd.
  virtual Figures health(Call&) const { return {}; }

  // The slots of a state; nullopt if the mixer has none.
  virtual std::optional<MemoryView> view(const MixerState&) const { return std::nullopt; }

  // Whether a training pass draws random numbers, if its Weights have a seed (Weights::with_noise).
  virtual bool draws_noise() const { return false; }

  // Why a decode step cannot be captured in a CUDA graph: it synchronizes with the host or copies from host memory. Empty if it only
  // enqueues work.
  virtual std::string needs_host() const { return {}; }

 protected:
  // Adds a tensor to the state and returns its index.
  size_t keep(StateSpec spec) {
    state_.push_back(std::move(spec));
    return state_.size() - 1;
  }
  // The same for a recurrent state in fp32.
  size_t keep_memory(std::vector<int64_t> shape, const char* name = "memory") { return keep({.name = name, .shape = std::move(shape)}); }
  // The same for a counter of tokens seen.
  size_t keep_position() { return keep({.name = "position", .shape = {}, .dtype = at::kLong, .memory = false}); }

 private:
  std::vector<StateSpec> state_;
};

}  // namespace cyfa
