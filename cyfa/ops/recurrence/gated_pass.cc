#include "cyfa/ops/recurrence/gated_pass.h"

#include "cyfa/ops/dense/portable_rowwise.h"

namespace cyfa::ops {
namespace {

// exp underflows to 0 here even in double. Clamping gates of -1e5 or -infinity to this value therefore gives the same decay, 0.
constexpr double kDeadGate = -1000.0;

at::Tensor batched(const at::Tensor& x) { return x.flatten(0, 1); }  // [n, g, ...] -> [n * g, ...]

// The state before chunk c, in `chunk_states` [n, g, K, V]; after the last chunk, `last`.
at::Tensor state_before(const at::Tensor& chunk_states, int64_t c, const at::Tensor& last) {
  return c < chunk_states.size(1) ? chunk_states.select(1, c) : last;
}

void add_to(at::Tensor& sum, const at::Tensor& x) {
  if (sum.defined()) {
    sum.add_(x);
  } else {
    sum = x;
  }
}

// S <- whole S + k^T (b v), with the factor b applied to the narrower of k and v.
class StateWalk {
 public:
  StateWalk(const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay) : whole_(decay.whole) {
    const bool on_value = v.size(-1) <= k.size(-1);
    k_ = (on_value ? k : k * decay.to_end).transpose(-1, -2);
    v_ = on_value ? v * decay.to_end : v;
  }

  // Computes the state after a chunk from the state before it; the two may alias.
  void advance(const at::Tensor& before, at::Tensor after, int64_t chunk) const {
    at::mul_out(after, before, whole_.select(1, chunk)).baddbmm_(k_.select(1, chunk), v_.select(1, chunk));
  }

 private:
  at::Tensor k_, v_, whole_;
};

}  // namespace

ChunkDecay::ChunkDecay(const at::Tensor& log_alpha, at::ScalarType dtype) {
  const int64_t C = log_alpha.size(-1);
  const at::Tensor sum = log_alpha.clamp_min(kDeadGate).cumsum(-1);
  const at::Tensor last = sum.narrow(-1, C - 1, 1);
  from_start = sum.to(dtype).exp().unsqueeze(-1);
  to_end = (last - sum).to(dtype).exp_().unsqueeze(-1);
  whole = last.to(dtype).exp().unsqueeze(-1);
  between = causal_decay(sum, dtype);
}

at::Tensor DecayGradient::log_alpha() const {
  const int64_t C = pairs.size(-1);
  // Gate s gets the contributions of all pairs with i < s <= t: sum over i < s by a product with a triangle of ones, then over t >= s.
  const at::Tensor before = at::ones({C, C}, pairs.options()).triu_(1);
  const at::Tensor inside = at::matmul(pairs, before).tril_().sum(-2);
  const at::Tensor read = from_start.flip(-1).cumsum(-1).flip(-1);
  const at::Tensor written = to_end.cumsum(-1) - to_end;
  return inside.add_(read).add_(written).add_(whole.unsqueeze(-1));
}

at::Tensor gated_pass_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay,
                              const at::Tensor& state, const at::Tensor& chunk_states) {
  const at::Tensor scores = at::bmm(batched(q), batched(k).transpose(1, 2)).mul_(batched(decay.between));
  const at::Tensor o = at::bmm(scores, batched(v)).unflatten(0, {q.size(0), q.size(1)});
  const StateWalk walk(k, v, decay);
  // Apply the decay from the chunk's start to the narrower of q and o.
  const bool on_query = k.size(-1) <= v.size(-1);
  const at::Tensor query = on_query ? q * decay.from_start : q;
  const bool keep = chunk_states.defined();
  if (keep) chunk_states.select(1, 0).copy_(state);
  for (int64_t c = 0; c < q.size(1); ++c) {
    const at::Tensor before = keep ? state_before(chunk_states, c, state) : state;
    at::Tensor o_c = o.select(1, c);
    if (on_query) {
      o_c.baddbmm_(query.select(1, c), before);
    } else {
      o_c.addcmul_(at::bmm(query.select(1, c), before), decay.from_start.select(1, c));
    }
    walk.advance(before, keep ? state_before(chunk_states, c + 1, state) : state, c);
  }
  return o;
}

void gated_pass_states(const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay, const at::Tensor& state,
                       const at::Tensor& chunk_states) {
  const StateWalk walk(k, v, decay);
  chunk_states.select(1, 0).copy_(state);
  for (int64_t c = 0; c < k.size(1); ++c) walk.advance(chunk_states.select(1, c), state_before(chunk_states, c + 1, state), c);
}

GatedPassGradient gated_pass_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ChunkDecay& decay,
                                      const at::Tensor& chunk_states, const at::Tensor& grad_o, const at::Tensor& grad_state,
                                      DecayGradient& gates) {
  const int64_t g = q.size(1);
  const std::vector<int64_t> batch = {q.size(0), g};
  GatedPassGradient grad;
  // Gradients inside the chunks.
  const at::Tensor scores = at::bmm(batched(q), batched(k).transpose(1, 2));
  const at::Tensor grad_scores = at::bmm(batched(grad_o), batched(v).transpose(1, 2)).mul_(batched(decay.between));
  add_to(gates.pairs, (scores * grad_scores).tril_(-1).unflatten(0, batch));
  scores.mul_(batched(decay.between));

  // Gradients through the states. The decay factors are applied to the narrower of keys and values.
  const bool on_value = v.size(-1) < k.size(-1);
  const at::Tensor upstream = on_value ? grad_o * decay.from_start : grad_o;
  const at::Tensor query = (on_value ? q : q * decay.from_start).transpose(-1, -2);
  const at::Tensor key = on_value ? k : k * decay.to_end;
  const at::Tensor value = on_value ? v * decay.to_end : v;
  grad.q = at::bmm(batched(upstream), batched(chunk_states).transpose(1, 2)).unflatten(0, batch);
  if (!on_value) grad.q.mul_(decay.from_start);
  add_to(gates.from_start, row_dot(grad.q, q));
  grad.k = at::empty(k.sizes(), k.options());
  grad.v = at::empty(v.sizes(), v.options());
  const at::Tensor kept = at::empty({q.size(0), g, 1, 1}, q.options());
  for (int64_t c = g - 1; c >= 0; --c) {
    at::Tensor grad_k = grad.k.select(1, c);
    at::Tensor grad_v = grad.v.select(1, c);
    at::Tensor kept_c = kept.select(1, c);
    at::bmm_out(grad_k, value.select(1, c), grad_state.transpose(1, 2));
    at::bmm_out(grad_v, key.select(1, c), grad_state);
    grad_state.mul_(decay.whole.select(1, c));
    at::bmm_out(kept_c, chunk_states.select(1, c).flatten(1).unsqueeze(1), grad_state.flatten(1).unsqueeze(2));
    grad_state.baddbmm_(query.select(1, c), upstream.select(1, c));
  }
  const at::Tensor narrow = (on_value ? grad.v : grad.k).mul_(decay.to_end);
  add_to(gates.to_end, row_dot(narrow, on_value ? v : k));
  add_to(gates.whole, kept.flatten(1));

  batched(grad.q).baddbmm_(grad_scores, batched(k));
  batched(grad.k).baddbmm_(grad_scores.transpose(1, 2), batched(q));
  batched(grad.v).baddbmm_(scores.transpose(1, 2), batched(grad_o));
  return grad;
}

}  // namespace cyfa::ops
