// One call of a mixer. Whole sequences (x [B, T, D]) and one token each of several sequences (x [B, D], a decoding step) differ in how
// projections, convolution and recurrence are computed, not in what they are: a mixer over this class says it once.
#pragma once

#include "cyfa/mixers/mixer.h"
#include "cyfa/ops/dense/attention.h"
#include "cyfa/ops/dense/dense.h"
#include "cyfa/ops/recurrence/recurrence.h"

namespace cyfa {

class Call {
 public:
  // Whole sequences; `initial` may be null. final_state() then has a tensor for each of `parts` once the parts have run.
  Call(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens, const MixerState* initial, size_t parts)
      : w_(w), x_(x), cu_seqlens_(cu_seqlens), initial_(initial), final_(parts) {}
  // A step; `state` is updated in place.
  Call(const Weights& w, const at::Tensor& x, MixerState& state) : w_(w), x_(x), state_(&state) {}

  bool is_step() const { return state_ != nullptr; }
  const at::Tensor& x() const { return x_; }
  const at::Tensor& operator[](ParameterId id) const { return w_[id]; }
  const std::optional<at::Tensor>& cu_seqlens() const { return cu_seqlens_; }
  MixerState take_final_state() { return std::move(final_); }

  // y times a weight [out, in] transposed, plus a bias, over the last dimension.
  at::Tensor linear(const at::Tensor& y, ParameterId weight, std::optional<ParameterId> bias = std::nullopt) const;
  // Several projections of x, which a step makes in one sweep.
  struct Projection {
    ParameterId weight;
    std::optional<ParameterId> bias;
  };
  std::vector<at::Tensor> project(const std::vector<Projection>& projections) const;

  // ShortConv of y [.., width]; state `part` is its tail [taps - 1, width].
  at::Tensor short_conv(const at::Tensor& y, ParameterId weight, std::optional<ParameterId> bias, size_t part);

  // State `part` counts the tokens seen: positions of this call's tokens, [B, T] or [B].
  at::Tensor positions(size_t part) const;
  // The same, and counts them. Once in a call.
  at::Tensor count_positions(size_t part);

  // Of values [B, T, X] of every token: those of the token before, and each sequence's last, [N, X] (in a step, of [B, X]). Where there is
  // no such token they are state `part`, flattened, or zeros where no part is named.
  at::Tensor preceding(const at::Tensor& values, std::optional<size_t> part) const;
  at::Tensor last(const at::Tensor& values, std::optional<size_t> part) const;
  at::Tensor starts() const;   // of packed sequences, [N]
  at::Tensor lengths() const;  // tokens of each sequence, [N]

  // Recurrences on state `part`, with heads: q [.., H, K] and so on as in cyfa/ops/recurrence/recurrence.h, with or without the T
  // dimension.
  at::Tensor la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ops::RecurrenceOptions& options = {});
  at::Tensor fixed_scalar_gated_la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_gamma,
                                   const ops::RecurrenceOptions& options = {});
  at::Tensor scalar_gated_la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha,
                             const ops::RecurrenceOptions& options = {});
  at::Tensor row_gated_la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha,
                          const ops::RecurrenceOptions& options = {});
  at::Tensor column_gated_la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha,
                             const ops::RecurrenceOptions& options = {});
  at::Tensor delta_rule(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                        const ops::RecurrenceOptions& options = {});
  at::Tensor scalar_gated_delta_rule(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                                     const at::Tensor& log_alpha, const ops::RecurrenceOptions& options = {});
  at::Tensor row_gated_delta_rule(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                                  const at::Tensor& log_alpha, const ops::RecurrenceOptions& options = {});
  // Softmax attention on states part (keys), part + 1 (values), part + 2 (tokens seen).
  at::Tensor attention(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window);

  // State `part` for what no function above does: as it was before the call (undefined: zeros), and as it is after.
  at::Tensor before(size_t part) const;
  void after(size_t part, const at::Tensor& value);

 private:
  std::optional<at::Tensor> initial(size_t part) const;
  at::Tensor rows_before(const at::Tensor& values, std::optional<size_t> part) const;  // [N, X]
  at::Tensor finish(size_t part, const ops::RecurrenceOutput& out);

  const Weights& w_;
  at::Tensor x_;
  std::optional<at::Tensor> cu_seqlens_;
  const MixerState* initial_ = nullptr;
  MixerState final_;
  MixerState* state_ = nullptr;
};

// A mixer whose computation is written over Call.
class CallMixer : public Mixer {
 public:
  const std::vector<StateSpec>& state() const override { return state_; }
  MixerOutput forward(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens,
                      const MixerState* initial) const override {
    Call call(w, x, cu_seqlens, initial, state_.size());
    MixerOutput out;
    out.y = mix(call);
    out.final_state = call.take_final_state();
    return out;
  }
  at::Tensor step(const Weights& w, const std::vector<at::Tensor>&, const at::Tensor& x, MixerState& state) const override {
    Call call(w, x, state);
    return mix(call);
  }

 protected:
  virtual at::Tensor mix(Call& call) const = 0;  // x [.., D] to y [.., D]

  // Adds a tensor to the state and returns its place.
  size_t keep(StateSpec spec) {
    state_.push_back(std::move(spec));
    return state_.size() - 1;
  }
  size_t keep_memory(std::vector<int64_t> shape, const char* name = "memory") { return keep({name, std::move(shape), at::kFloat}); }
  size_t keep_position() { return keep({"position", {}, at::kLong, false}); }

 private:
  std::vector<StateSpec> state_;
};

}  // namespace cyfa
