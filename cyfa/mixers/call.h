// The inputs, weights and states of one invocation of a mixer. A forward over whole sequences (x [B, T, D]) and a decode step (one token of
// each sequence, x [B, D]) compute projections, convolutions and recurrences differently. Call hides the difference, so a mixer has one
// implementation for both.
#pragma once

#include <functional>

#include "cyfa/mixers/mixer.h"
#include "cyfa/mixers/weights.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/dense/dense.h"
#include "cyfa/ops/recurrence/table.h"

namespace cyfa {

// One invocation of a mixer: a forward over whole sequences or a decode step.
class Call {
 public:
  // Forward over whole sequences, starting from `initial`, or from an empty state if it is null; `initial` is never modified. With
  // cu_seqlens, x is [1, T, D] and holds packed sequences. `parts` is the number of state tensors; take_final_state() returns one tensor
  // for each after the mixer has run.
  Call(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens, const MixerState* initial, size_t parts)
      : w_(w), x_(x), cu_seqlens_(cu_seqlens), initial_(initial), final_(parts) {}
  // Decode step; `state` is updated in place.
  Call(const Weights& w, const at::Tensor& x, MixerState& state) : w_(w), x_(x), state_(&state) {}

  bool is_step() const { return state_ != nullptr; }
  const at::Tensor& x() const { return x_; }
  const Weights& weights() const { return w_; }
  const at::Tensor& operator[](ParameterId id) const { return w_[id]; }
  const std::optional<at::Tensor>& cu_seqlens() const { return cu_seqlens_; }
  // The final states of a forward. Each tensor owns its storage: it shares none with x, the initial state or tensors saved by autograd.
  MixerState take_final_state();

  // y W^T + bias over the last dimension, with W [out, in].
  at::Tensor linear(const at::Tensor& y, ParameterId weight, std::optional<ParameterId> bias = std::nullopt) const;

  // A projection of x, identified by its weight.
  struct Projection {
    Projection(ParameterId by, std::optional<ParameterId> plus = std::nullopt) : weight(by), bias(plus) {}
    // The input of a gate: over whole sequences the bias is added after the product, in the bias's own type. A step adds it in the product.
    static Projection of_gate(ParameterId by, ParameterId plus, bool stops_gradient = false) {
      Projection p(by, plus);
      p.bias_after = true;
      p.stops_gradient = stops_gradient;
      return p;
    }

    ParameterId weight;
    std::optional<ParameterId> bias;
    bool bias_after = false;      // see of_gate
    bool stops_gradient = false;  // no gradient flows back to x
  };
  // The results of project(), looked up by weight.
  class Projections {
   public:
    const at::Tensor& operator[](ParameterId weight);  // throws std::logic_error for a weight that was not passed to project()

   private:
    friend class Call;
    struct Entry {
      Projection projection;
      at::Tensor value;
    };
    Projections(const Call& call, const std::vector<Projection>& projections);

    const Call& call_;
    std::vector<Entry> entries_;
  };
  // Several projections of x. A decode step computes them all in one batched call. A forward computes them here in the given order, or,
  // with kOnUse, on first use, so that a result occupies no memory until it is needed.
  enum class When { kNow, kOnUse };
  Projections project(const std::vector<Projection>& projections, When when = When::kNow) const;

  // Short convolution of y [.., width]. State `part` holds its last inputs, [taps - 1, width].
  at::Tensor short_conv(const at::Tensor& y, ParameterId weight, std::optional<ParameterId> bias, size_t part);

  // Positions of this call's tokens, [B, T] or [B]. State `part` counts the tokens seen so far.
  at::Tensor positions(size_t part) const;
  // The same, and advances the counter. Call at most once.
  at::Tensor count_positions(size_t part);

  // `values` [B, T, X] shifted by one token: each token gets its predecessor's value. The first token of a sequence gets state `part`
  // (flattened), or zeros if there is no part or no initial state. Forward only.
  at::Tensor preceding(const at::Tensor& values, std::optional<size_t> part) const;
  // The value of each sequence's last token, [N, X]; for an empty sequence, state `part` or zeros as above. In a step, `values` [B, X].
  at::Tensor last(const at::Tensor& values, std::optional<size_t> part) const;
  at::Tensor starts() const;   // first token of each packed sequence, [N]
  at::Tensor lengths() const;  // number of tokens of each sequence, [N]

  // Runs the op of cyfa/ops/recurrence/table.h with this name on state `part`. Inputs are q [.., H, K] and so on, without the T dimension
  // in a step; q and k may have fewer heads than v (RecurrenceOptions::shared_keys). `in.initial_state` and `in.cu_seqlens` are set here.
  at::Tensor recurrence(const char* op, size_t part, ops::RecurrenceInputs in, ops::RecurrenceOptions options = {});
  // cyclic_flow on states part (keys), part + 1 (values) and part + 2 (clock). A step uses a precomputed readout table, which is computed
  // once per set of weights and cached under the weight `table`.
  at::Tensor cyclic_flow(size_t part, ops::CyclicFlowInputs in, const ops::CyclicFlowOptions& options, ParameterId table);
  // Softmax attention with the KV cache in states part (keys), part + 1 (values) and part + 2 (tokens seen).
  at::Tensor attention(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window);

  // part(call, y) for y [B, T, ..] or, in a step, [B, ..], where the call differs from this one only in x, which is y. In training it saves
  // nothing but its inputs, and backward runs it again: for a mixer with large intermediate results. `part` reads no other weights than
  // those named here, and owns what it uses, since it outlives this call.
  using Part = std::function<at::Tensor(Call& call, const at::Tensor& y)>;
  at::Tensor recomputed(const at::Tensor& y, const std::vector<ParameterId>& weights, const Part& part);

  // A look at the clock of a forward: an analysis (cyfa/analysis) sees the increments [B, T, H] that the mixer has computed and returns the
  // ones that it is to use, the same or others.
  using ClockHook = std::function<at::Tensor(const at::Tensor& delta)>;
  void hook_clock(ClockHook hook) { clock_hook_ = std::move(hook); }
  // The increments to use in place of `delta`.
  at::Tensor clock(const at::Tensor& delta) const { return clock_hook_ ? clock_hook_(delta) : delta; }
  // Likewise for gradients: whether the clock stops them, in place of what the config says, and a look at the inputs, options and output of
  // cyclic_flow in a forward.
  void stop_clock_gradient(bool stops) { stops_clock_gradient_ = stops; }
  bool stops_clock_gradient(bool of_config) const { return stops_clock_gradient_.value_or(of_config); }
  using FlowHook = std::function<void(const ops::CyclicFlowInputs& in, const ops::CyclicFlowOptions& options, const at::Tensor& o)>;
  void hook_flow(FlowHook hook) { flow_hook_ = std::move(hook); }

  // Direct access to state `part`: before() reads its value before the call (undefined means zeros), after() sets its new value.
  at::Tensor before(size_t part) const;
  void after(size_t part, const at::Tensor& value);
  // The states of a forward that have been computed so far.
  const MixerState& final_state() const { return final_; }

 private:
  std::optional<at::Tensor> initial(size_t part) const;
  // State `part` flattened, or zeros, [N, X]: the value that precedes each sequence's first token.
  at::Tensor rows_before(const at::Tensor& values, std::optional<size_t> part) const;

  const Weights& w_;
  at::Tensor x_;
  std::optional<at::Tensor> cu_seqlens_;
  const MixerState* initial_ = nullptr;
  MixerState final_;
  MixerState* state_ = nullptr;
  ClockHook clock_hook_;
  FlowHook flow_hook_;
  std::optional<bool> stops_clock_gradient_;
};

}  // namespace cyfa
