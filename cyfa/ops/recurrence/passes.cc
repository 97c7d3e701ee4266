// The three passes other than the scalar-gated one of cyfa/ops/recurrence/gated_pass.h. S is the state at a chunk's start; the prefixes a
// and b mean that a tensor is multiplied by the decay from the chunk's start or to its end.
//   rows:     P = scores(Q, K);  O = aQ S + P V;  S <- whole S + (bK)^T V
//   columns:  P = tril(Q K^T);   O = a(Q S) + apply(P, V);  S <- S whole + K^T (bV)
//   delta:    rows with U for V, where U = beta (V - aK S) - beta tril(scores(K, K), -1) U, so U = (I + A)^-1 beta (V - aK S) with a unit
//             triangular matrix I + A of C x C.
#include "cyfa/ops/recurrence/passes.h"

#include <ATen/Parallel.h>

#include "cyfa/kernels/delta_rule/inverse.h"
#include "cyfa/ops/common/grain.h"
#include "cyfa/ops/dense/portable_rowwise.h"
#include "cyfa/ops/recurrence/gated_pass.h"
#include "cyfa/ops/recurrence/key_decay.h"

namespace cyfa::ops {
namespace {

using at::Tensor;

Tensor batched(const Tensor& x) { return x.flatten(0, 1); }  // [n, g, ...] -> [n * g, ...]

Tensor product(const Tensor& a, const Tensor& b) { return at::bmm(batched(a), batched(b)).unflatten(0, {a.size(0), a.size(1)}); }

Tensor transposed(const Tensor& x) { return x.transpose(-1, -2); }

Tensor like(const Tensor& x) { return at::empty(x.sizes(), x.options()); }
Tensor cleared(const Tensor& x) { return at::zeros(x.sizes(), x.options()); }

// The gate kernels require contiguous rows of the tensors to which the gates apply.
SegmentInputs with_plain_keys(SegmentInputs in) {
  in.q = in.q.contiguous();
  in.k = in.k.contiguous();
  return in;
}

SegmentInputs with_plain_values(SegmentInputs in) {
  in.v = in.v.contiguous();
  return in;
}

// The states at the start of every chunk, [n, g, K, V], filled in chunk order.
class ChunkStates {
 public:
  ChunkStates(const SegmentInputs& in, const Tensor& first)
      : all_(at::empty({in.q.size(0), in.q.size(1), in.k.size(-1), in.v.size(-1)}, in.q.options())) {
    all_.select(1, 0).copy_(first);
  }

  const Tensor& all() const { return all_; }
  Tensor before(int64_t c) const { return all_.select(1, c); }

  // S of the next chunk = decayed S of this chunk + key^T value. The state after the last chunk is not computed.
  template <class Carry>
  void advance(int64_t c, const Tensor& key, const Tensor& value, const Carry& carry) const {
    if (c + 1 == all_.size(1)) return;
    const Tensor next = before(c + 1);
    carry(before(c), next);
    next.baddbmm_(transposed(key.select(1, c)), value.select(1, c));
  }
  void advance(int64_t c, const KeyDecay& decay, const Tensor& key, const Tensor& value) const {
    advance(c, key, value, [&](const Tensor& from, const Tensor& to) { decay.carry(c, from, to); });
  }

 private:
  Tensor all_;
};

std::unique_ptr<KeyDecay> key_decay_of(const Recurrence& r, const SegmentInputs& in) {
  if (r.gate == Gate::kNone) return std::make_unique<NoKeyDecay>();
  if (r.gate == Gate::kRow) return std::make_unique<PerKeyDecay>(in.log_alpha);
  return std::make_unique<ScalarKeyDecay>(in.log_alpha, in.q.scalar_type());
}

Tensor scalar_forward(const Recurrence&, const SegmentInputs& in, const Tensor& state) {
  return gated_pass_forward(in.q, in.k, in.v, ChunkDecay(in.log_alpha, in.q.scalar_type()), state, {});
}

SegmentGradients scalar_backward(const Recurrence&, const SegmentInputs& in, const Tensor& state, const Tensor& grad_o,
                                 const Tensor& grad_state) {
  const ChunkDecay decay(in.log_alpha, in.q.scalar_type());
  const Tensor states = at::empty({in.q.size(0), in.q.size(1), in.k.size(-1), in.v.size(-1)}, in.q.options());
  gated_pass_states(in.k, in.v, decay, state, states);
  DecayGradient gates;
  const GatedPassGradient grad = gated_pass_backward(in.q, in.k, in.v, decay, states, grad_o, grad_state, gates);
  return {grad.q, grad.k, grad.v, gates.log_alpha(), {}};
}

Tensor row_forward(const Recurrence&, const SegmentInputs& given, const Tensor& state) {
  const SegmentInputs in = with_plain_keys(given);
  const PerKeyDecay decay(in.log_alpha);
  const Tensor query = decay.from_start(in.q);
  const Tensor key = transposed(decay.to_end(in.k));
  const Tensor o = product(decay.scores({in.q}, in.k)[0], in.v);
  for (int64_t c = 0; c < in.q.size(1); ++c) {
    o.select(1, c).baddbmm_(query.select(1, c), state);
    decay.carry(c, state, state);
    state.baddbmm_(key.select(1, c), in.v.select(1, c));
  }
  return o;
}

SegmentGradients row_backward(const Recurrence&, const SegmentInputs& given, const Tensor& state, const Tensor& grad_o,
                              const Tensor& grad_state) {
  const SegmentInputs in = with_plain_keys(given);
  PerKeyDecay decay(in.log_alpha);
  const int64_t g = in.q.size(1);
  const Tensor query = decay.from_start(in.q);
  const Tensor key = decay.to_end(in.k);
  const ChunkStates states(in, state);
  for (int64_t c = 0; c < g; ++c) states.advance(c, decay, key, in.v);

  SegmentGradients grad;
  grad.v = product(transposed(decay.scores({in.q}, in.k)[0]), grad_o);
  const Tensor grad_key = like(in.k);
  for (int64_t c = g - 1; c >= 0; --c) {
    Tensor grad_key_c = grad_key.select(1, c);
    at::bmm_out(grad_key_c, in.v.select(1, c), transposed(grad_state));
    grad.v.select(1, c).baddbmm_(key.select(1, c), grad_state);
    decay.carry_backward(c, states.before(c), grad_state);
    grad_state.baddbmm_(transposed(query.select(1, c)), grad_o.select(1, c));
  }
  grad.q = cleared(in.q);
  grad.k = cleared(in.k);
  decay.from_start_backward(product(grad_o, transposed(states.all())), query, grad.q);
  decay.to_end_backward(grad_key, key, grad.k);
  decay.scores_backward({product(grad_o, transposed(in.v)).tril_()}, {in.q}, in.k, {grad.q}, grad.k);
  grad.log_alpha = decay.log_alpha_gradient();
  return grad;
}

Tensor column_forward(const Recurrence&, const SegmentInputs& given, const Tensor& state) {
  const SegmentInputs in = with_plain_values(given);
  const PerKeyDecay decay(in.log_alpha);
  const Tensor key = transposed(in.k);
  const Tensor value = decay.to_end(in.v);
  const Tensor whole = transposed(decay.whole());
  const Tensor read = like(in.v);
  for (int64_t c = 0; c < in.q.size(1); ++c) {
    Tensor read_c = read.select(1, c);
    at::bmm_out(read_c, in.q.select(1, c), state);
    state.mul_(whole.select(1, c)).baddbmm_(key.select(1, c), value.select(1, c));
  }
  return decay.apply(product(in.q, key).tril_(), in.v).add_(decay.from_start(read));
}

SegmentGradients column_backward(const Recurrence&, const SegmentInputs& given, const Tensor& state, const Tensor& upstream,
                                 const Tensor& grad_state) {
  const SegmentInputs in = with_plain_values(given);
  const Tensor grad_o = upstream.contiguous();
  PerKeyDecay decay(in.log_alpha);
  const int64_t g = in.q.size(1);
  const Tensor value = decay.to_end(in.v);
  const Tensor whole = transposed(decay.whole());
  const ChunkStates states(in, state);
  for (int64_t c = 0; c < g; ++c) {
    states.advance(c, in.k, value, [&](const Tensor& from, Tensor to) { at::mul_out(to, from, whole.select(1, c)); });
  }

  SegmentGradients grad;
  const Tensor grad_read = cleared(in.v);
  decay.from_start_backward(grad_o, decay.from_start(product(in.q, states.all())), grad_read);
  grad.q = product(grad_read, transposed(states.all()));
  grad.k = like(in.k);
  const Tensor grad_value = like(in.v);
  const Tensor kept = at::empty({in.q.size(0), g, in.v.size(-1)}, in.q.options());
  for (int64_t c = g - 1; c >= 0; --c) {
    Tensor grad_k_c = grad.k.select(1, c);
    Tensor grad_value_c = grad_value.select(1, c);
    at::bmm_out(grad_k_c, value.select(1, c), transposed(grad_state));
    at::bmm_out(grad_value_c, in.k.select(1, c), grad_state);
    grad_state.mul_(whole.select(1, c));
    kept.select(1, c).copy_((states.before(c) * grad_state).sum(1));
    grad_state.baddbmm_(transposed(in.q.select(1, c)), grad_read.select(1, c));
  }
  grad.v = cleared(in.v);
  decay.to_end_backward(grad_value, value, grad.v);
  decay.whole_backward(kept);
  const Tensor weights = product(in.q, transposed(in.k)).tril_();
  const Tensor grad_weights = decay.scores({grad_o}, in.v)[0];
  decay.scores_backward({weights}, {grad_o}, in.v, {Tensor()}, grad.v);
  batched(grad.q).baddbmm_(batched(grad_weights), batched(in.k));
  batched(grad.k).baddbmm_(batched(transposed(grad_weights)), batched(in.q));
  grad.log_alpha = decay.log_alpha_gradient();
  return grad;
}

// (I + A)^-1 for strictly lower triangular A [n, g, C, C]. The results of LAPACK's solver depend on the number of threads, so there is a
// separate implementation for the CPU.
Tensor unit_lower_inverse(const Tensor& a) {
  if (!a.is_cpu()) {
    const Tensor unit = at::eye(a.size(-1), a.options()).expand_as(a);
    return at::linalg_solve_triangular(a, unit, /*upper=*/false, /*left=*/true, /*unitriangular=*/true).contiguous();
  }
  const Tensor out = like(a);
  const int64_t size = a.size(-1);
  const int64_t numbers = size * size;
  const auto invert = [&](const auto* from, auto* to) {
    at::parallel_for(0, a.size(0) * a.size(1), grain(numbers * size / 6), [&](int64_t begin, int64_t end) {
      delta_rule::unit_lower_inverse(end - begin, size, from + begin * numbers, to + begin * numbers);
    });
  };
  if (a.scalar_type() == at::kFloat) {
    invert(a.const_data_ptr<float>(), out.mutable_data_ptr<float>());
  } else {
    invert(a.const_data_ptr<double>(), out.mutable_data_ptr<double>());
  }
  return out;
}

// The parts of a delta pass that do not depend on the state.
struct DeltaChunks {
  Tensor query, reader;  // [n, g, C, K] aQ, aK
  Tensor key;            // [n, g, C, K] bK
  Tensor scores;         // [n, g, C, C] queries with keys
  Tensor self_scores;    // [n, g, C, C] keys with keys, strictly lower triangular
  Tensor inverse;        // [n, g, C, C] (I + A)^-1, A = beta self_scores
  Tensor solver;         // [n, g, C, C] (I + A)^-1 beta

  DeltaChunks(const SegmentInputs& in, const KeyDecay& decay)
      : query(decay.from_start(in.q)), reader(decay.from_start(in.k)), key(decay.to_end(in.k)) {
    const std::vector<Tensor> both = decay.scores({in.q, in.k}, in.k);
    scores = both[0];
    self_scores = both[1].tril_(-1);
    inverse = unit_lower_inverse(self_scores * in.beta);
    solver = inverse * transposed(in.beta);
  }

  // V - aK S and U of chunk c.
  void solve(int64_t c, const Tensor& v, const Tensor& state, Tensor missing, Tensor u) const {
    at::baddbmm_out(missing, v.select(1, c), reader.select(1, c), state, 1, -1);
    at::bmm_out(u, solver.select(1, c), missing);
  }
};

Tensor delta_forward(const Recurrence& r, const SegmentInputs& given, const Tensor& state) {
  const SegmentInputs in = r.gate == Gate::kRow ? with_plain_keys(given) : given;
  const std::unique_ptr<KeyDecay> decay = key_decay_of(r, in);
  const DeltaChunks chunks(in, *decay);
  const Tensor o = like(in.v);
  const Tensor u = like(in.v);
  const Tensor missing = like(in.v.select(1, 0));
  for (int64_t c = 0; c < in.q.size(1); ++c) {
    Tensor o_c = o.select(1, c);
    at::bmm_out(o_c, chunks.query.select(1, c), state);
    chunks.solve(c, in.v, state, missing, u.select(1, c));
    decay->carry(c, state, state);
    state.baddbmm_(transposed(chunks.key.select(1, c)), u.select(1, c));
  }
  batched(o).baddbmm_(batched(chunks.scores), batched(u));
  return o;
}

SegmentGradients delta_backward(const Recurrence& r, const SegmentInputs& given, const Tensor& state, const Tensor& grad_o,
                                const Tensor& grad_state) {
  const SegmentInputs in = r.gate == Gate::kRow ? with_plain_keys(given) : given;
  const std::unique_ptr<KeyDecay> decay = key_decay_of(r, in);
  const DeltaChunks chunks(in, *decay);
  const int64_t g = in.q.size(1);
  const ChunkStates states(in, state);
  const Tensor missing = like(in.v);
  const Tensor u = like(in.v);
  for (int64_t c = 0; c < g; ++c) {
    chunks.solve(c, in.v, states.before(c), missing.select(1, c), u.select(1, c));
    states.advance(c, *decay, chunks.key, u);
  }

  // dU has contributions from O and from the next state. With R = (I + A)^-T dU, d(V - aK S) = beta R = dV and dA = -R U^T.
  SegmentGradients grad;
  grad.v = like(in.v);
  const Tensor grad_u = product(transposed(chunks.scores), grad_o);
  const Tensor solved = like(in.v);  // R
  const Tensor grad_key = like(in.k);
  for (int64_t c = g - 1; c >= 0; --c) {
    Tensor grad_key_c = grad_key.select(1, c);
    Tensor solved_c = solved.select(1, c);
    Tensor grad_v_c = grad.v.select(1, c);
    at::bmm_out(grad_key_c, u.select(1, c), transposed(grad_state));
    at::bmm_out(solved_c, transposed(chunks.inverse.select(1, c)), grad_u.select(1, c).baddbmm_(chunks.key.select(1, c), grad_state));
    at::mul_out(grad_v_c, solved_c, in.beta.select(1, c));
    decay->carry_backward(c, states.before(c), grad_state);
    grad_state.baddbmm_(transposed(chunks.query.select(1, c)), grad_o.select(1, c));
    grad_state.baddbmm_(transposed(chunks.reader.select(1, c)), grad_v_c, 1, -1);
  }

  grad.q = cleared(in.q);
  grad.k = cleared(in.k);
  decay->from_start_backward(product(grad_o, transposed(states.all())), chunks.query, grad.q);
  decay->from_start_backward(product(grad.v, transposed(states.all())).neg_(), chunks.reader, grad.k);
  decay->to_end_backward(grad_key, chunks.key, grad.k);
  const Tensor grad_inside = product(solved, transposed(u)).neg_();  // dA
  grad.beta = (row_dot(solved, missing) + row_dot(grad_inside, chunks.self_scores)).unsqueeze(-1);
  decay->scores_backward({product(grad_o, transposed(u)).tril_(), grad_inside.mul_(in.beta).tril_(-1)}, {in.q, in.k}, in.k,
                         {grad.q, grad.k}, grad.k);
  grad.log_alpha = decay->log_alpha_gradient();
  return grad;
}

}  // namespace

const SegmentPass kScalarPass{scalar_forward, scalar_backward};
const SegmentPass kRowPass{row_forward, row_backward};
const SegmentPass kColumnPass{column_forward, column_backward};
const SegmentPass kDeltaPass{delta_forward, delta_backward};

}  // namespace cyfa::ops
