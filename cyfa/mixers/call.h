// One call of a mixer. Whole sequences (x [B, T, D]) and one token each of several sequences (x [B, D], a decoding step) differ in how
// projections, convolution and recurrence are computed, not in what they are: a mixer over this class is written once.
#pragma once

#include "cyfa/mixers/mixer.h"
#include "cyfa/mixers/weights.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/dense/dense.h"
#include "cyfa/ops/recurrence/table.h"

namespace cyfa {

class Call {
 public:
  // Whole sequences, from `initial` or, where it is null, from an empty memory; it is never changed. With cu_seqlens, x is [1, T, D] and
  // holds packed sequences. take_final_state() has a tensor for each of `parts` states once the mixer has run.
  Call(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens, const MixerState* initial, size_t parts)
      : w_(w), x_(x), cu_seqlens_(cu_seqlens), initial_(initial), final_(parts) {}
  // A step; `state` is updated in place.
  Call(const Weights& w, const at::Tensor& x, MixerState& state) : w_(w), x_(x), state_(&state) {}

  bool is_step() const { return state_ != nullptr; }
  const at::Tensor& x() const { return x_; }
  const Weights& weights() const { return w_; }
  const at::Tensor& operator[](ParameterId id) const { return w_[id]; }
  const std::optional<at::Tensor>& cu_seqlens() const { return cu_seqlens_; }
  // Each tensor owns its memory: it shares none with x, the initial state or what autograd keeps.
  MixerState take_final_state();

  // y times a weight [out, in] transposed, plus a bias, over the last dimension.
  at::Tensor linear(const at::Tensor& y, ParameterId weight, std::optional<ParameterId> bias = std::nullopt) const;

  // A projection of x, called by its weight.
  struct Projection {
    Projection(ParameterId by, std::optional<ParameterId> plus = std::nullopt) : weight(by), bias(plus) {}
    static Projection without_gradient(ParameterId by) {
      Projection p(by);
      p.stops_gradient = true;
      return p;
    }

    ParameterId weight;
    std::optional<ParameterId> bias;
    bool stops_gradient = false;  // x takes no gradient from it
  };
  class Projections {
   public:
    const at::Tensor& operator[](ParameterId weight);

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
  // Several projections of x. A step computes them in one sweep over x; of whole sequences each is computed here, in this order, or,
  // with kOnUse, when it is first asked for, so that it takes no memory before.
  enum class When { kNow, kOnUse };
  Projections project(const std::vector<Projection>& projections, When when = When::kNow) const;

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

  // An op of cyfa/ops/recurrence/table.h by its name, on state `part`: q [.., H, K] and so on, with or without the T dimension. States and
  // borders of `in` are filled in here.
  at::Tensor recurrence(const char* op, size_t part, ops::RecurrenceInputs in, const ops::RecurrenceOptions& options = {});
  // cyclic_flow on states part (keys), part + 1 (values) and part + 2 (clock). A step reads the readout by way of a table, which is made
  // once for a set of weights and kept with weight `table`.
  at::Tensor cyclic_flow(size_t part, ops::CyclicFlowInputs in, const ops::CyclicFlowOptions& options, ParameterId table);
  // Softmax attention on states part (keys), part + 1 (values), part + 2 (tokens seen).
  at::Tensor attention(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window);

  // State `part` for what no function above does: as it was before the call (undefined: zeros), and as it is after.
  at::Tensor before(size_t part) const;
  void after(size_t part, const at::Tensor& value);
  // What after() left so far, of whole sequences.
  const MixerState& final_state() const { return final_; }

 private:
  std::optional<at::Tensor> initial(size_t part) const;
  at::Tensor rows_before(const at::Tensor& values, std::optional<size_t> part) const;  // [N, X]

  const Weights& w_;
  at::Tensor x_;
  std::optional<at::Tensor> cu_seqlens_;
  const MixerState* initial_ = nullptr;
  MixerState final_;
  MixerState* state_ = nullptr;
};

}  // namespace cyfa
