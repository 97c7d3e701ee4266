// The sm90 backend of the recurrences, for bf16 on Hopper. A chunk's inside is batched over all chunks of a segment, in products whose
// operands are rounded to bf16; the walk from chunk to chunk is one launch (cyfa/kernels/recurrence/sm90/walk_sm90.h). States and sums are
// fp32. The formulas are those of cyfa/ops/recurrence/passes.cc, where S is the state at a chunk's start and a and b are the decays from
// the chunk's start and to its end. With W = (I + A)^-1 beta, the delta rules' U = W V - (W aK) S has the form of a walk, and so has its
// adjoint: dU = P^T dO + bK dS', dS = whole dS' + (aQ)^T dO - (W aK)^T dU.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cyfa/kernels/recurrence/sm90/walk_sm90.h"
#include "cyfa/ops/dense/portable_rowwise.h"
#include "cyfa/ops/recurrence/key_decay.h"
#include "cyfa/ops/recurrence/passes.h"
#include "cyfa/ops/recurrence/sm90_row_gates.h"
#include "cyfa/ops/recurrence/sm90_scalar.h"

namespace cyfa::ops {
namespace {

using at::Tensor;
using recurrence::WalkDecay;

Tensor batched(const Tensor& x) { return x.flatten(0, 1); }  // [n, g, ...] -> [n * g, ...]
Tensor transposed(const Tensor& x) { return x.transpose(-1, -2); }
Tensor rounded(const Tensor& x) { return x.to(at::kBFloat16).contiguous(); }
Tensor cleared(const Tensor& x) { return at::zeros(x.sizes(), x.options()); }

Tensor product(const Tensor& a, const Tensor& b) {
  return kBf16Products.product(batched(a), batched(b)).unflatten(0, {a.size(0), a.size(1)});
}
void add_product(const Tensor& sum, const Tensor& a, const Tensor& b) { kBf16Products.add(batched(sum), batched(a), batched(b)); }

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(); }

const void* data(const Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

// Operands of a walk, in any floating-point type. `whole` is KeyDecay::whole(), or the same for gates of columns.
struct Operands {
  Tensor read, base, write, write2, x2, whole;
  bool columns = false, backward = false;

  WalkDecay decays() const {
    if (!whole.defined()) return WalkDecay::kNone;
    if (columns) return WalkDecay::kColumn;
    return whole.size(2) == 1 ? WalkDecay::kState : WalkDecay::kRow;
  }
};

struct Walked {
  Tensor states;  // [n, g, K, V] bf16
  Tensor x;       // [n, g, C, V] bf16: base + read S
};

// Advances `state` [n, K, V] in place.
Walked walk(const Operands& in, const Tensor& state) {
  const auto round = [](const Tensor& x) { return x.defined() ? rounded(x) : x; };
  const Tensor read = round(in.read), base = rounded(in.base), write = rounded(in.write), write2 = round(in.write2), x2 = round(in.x2);
  const Tensor whole = in.whole.defined() ? in.whole.contiguous() : in.whole;
  const Tensor running = state.contiguous();
  const int64_t n = write.size(0), g = write.size(1), K = write.size(3), V = base.size(3);
  Walked out{at::empty({n, g, K, V}, write.options()), read.defined() ? at::empty(base.sizes(), base.options()) : base};
  recurrence::Walk p;
  p.n = n;
  p.g = g;
  p.K = K;
  p.V = V;
  p.backward = in.backward;
  p.read = data(read);
  p.base = data(base);
  p.write = data(write);
  p.write2 = data(write2);
  p.x2 = data(x2);
  p.decays = in.decays();
  p.decay = whole.defined() ? whole.const_data_ptr<float>() : nullptr;
  p.state = running.data_ptr<float>();
  p.states = out.states.data_ptr();
  p.x = read.defined() ? out.x.data_ptr() : nullptr;
  C10_CUDA_CHECK(recurrence::walk_sm90(p, stream()));
  if (!running.is_same(state)) state.copy_(running);
  return out;
}

// d(loss)/d(log whole) from the states of a walk and those of its adjoint: [n, g], [n, g, K] or, for gates of columns, [n, g, V].
Tensor whole_gradient(const Operands& in, const Tensor& states, const Tensor& grads) {
  const Tensor whole = in.whole.contiguous();
  const Tensor out = at::empty(whole.sizes(), whole.options());
  recurrence::WalkDecayGradient p;
  p.chunks = states.size(0) * states.size(1);
  p.K = states.size(2);
  p.V = states.size(3);
  p.states = states.const_data_ptr();
  p.grads = grads.const_data_ptr();
  p.decays = in.decays();
  p.decay = whole.const_data_ptr<float>();
  p.out = out.data_ptr<float>();
  C10_CUDA_CHECK(recurrence::walk_decay_gradient_sm90(p, stream()));
  return p.decays == WalkDecay::kState ? out.flatten(1) : out.flatten(2);
}

Tensor unit_lower_inverse(const Tensor& a) {
  const Tensor from = a.contiguous();
  const Tensor out = at::empty(from.sizes(), from.options());
  C10_CUDA_CHECK(
      recurrence::unit_lower_inverse_sm90(from.size(0) * from.size(1), from.const_data_ptr<float>(), out.data_ptr<float>(), stream()));
  return out;
}

std::unique_ptr<KeyDecay> key_decay_of(const Recurrence& r, const SegmentInputs& in) {
  if (r.gate == Gate::kNone) return std::make_unique<NoKeyDecay>(kBf16Products);
  if (r.gate == Gate::kRow) return std::make_unique<Sm90RowGates>(in.log_alpha);
  return std::make_unique<ScalarKeyDecay>(in.log_alpha, in.q.scalar_type(), kBf16Products);
}

SegmentInputs plain(SegmentInputs in) {
  in.q = in.q.contiguous();
  in.k = in.k.contiguous();
  in.v = in.v.contiguous();
  return in;
}

// What does not depend on the state, and the walk: no gate or gates of tokens or rows, with or without the delta rule.
struct RowChunks {
  Tensor query, key, scores;              // aQ, bK [n, g, C, K]; queries with keys [n, g, C, C]
  Tensor reader, self_scores;             // delta: aK; keys with keys, strictly lower triangular
  Tensor inverse, solver, solved_reader;  // delta: (I + A)^-1; W; -W aK
  Operands operands;
  Walked walked;  // x is U, or V without the delta rule

  RowChunks(const Recurrence& r, const SegmentInputs& in, const KeyDecay& decay, const Tensor& state)
      : query(decay.from_start(in.q)), key(decay.to_end(in.k)) {
    const std::vector<Tensor> all = decay.scores(r.delta ? std::vector<Tensor>{in.q, in.k} : std::vector<Tensor>{in.q}, in.k);
    scores = all[0];
    operands.base = in.v;
    operands.write = key;
    operands.whole = decay.whole();
    if (r.delta) {
      reader = decay.from_start(in.k);
      self_scores = all[1].tril_(-1);
      inverse = unit_lower_inverse(self_scores * in.beta);
      solver = rounded(inverse * transposed(in.beta));
      solved_reader = rounded(product(solver, reader).neg_());
      operands.read = solved_reader;
      operands.base = product(solver, in.v);
    }
    walked = walk(operands, state);
  }
};

Tensor rows_forward(const Recurrence& r, const SegmentInputs& given, const Tensor& state) {
  const SegmentInputs in = plain(given);
  const std::unique_ptr<KeyDecay> decay = key_decay_of(r, in);
  const RowChunks c(r, in, *decay, state);
  const Tensor o = product(c.query, c.walked.states);
  add_product(o, c.scores, c.walked.x);
  return o;
}

SegmentGradients rows_backward(const Recurrence& r, const SegmentInputs& given, const Tensor& state, const Tensor& upstream,
                               const Tensor& grad_state) {
  const SegmentInputs in = plain(given);
  const Tensor grad_o = rounded(upstream);
  const std::unique_ptr<KeyDecay> decay = key_decay_of(r, in);
  const RowChunks c(r, in, *decay, state);
  const Tensor& states = c.walked.states;
  const Tensor& x = c.walked.x;

  Operands back;
  back.backward = true;
  back.whole = c.operands.whole;
  SegmentGradients grad;
  const Tensor grad_x = product(transposed(c.scores), grad_o);
  Walked walked;
  if (r.delta) {
    back.read = c.key;
    back.base = grad_x;
    back.write = c.solved_reader;
    back.write2 = c.query;
    back.x2 = grad_o;
    walked = walk(back, grad_state);
  } else {
    back.base = grad_o;
    back.write = c.query;
    walked = walk(back, grad_state);
    add_product(grad_x, c.key, walked.states);
    grad.v = grad_x;
  }
  grad.q = cleared(in.q);
  grad.k = cleared(in.k);
  if (back.whole.defined()) decay->whole_backward(whole_gradient(back, states, walked.states));
  decay->from_start_backward(product(grad_o, transposed(states)), c.query, grad.q);
  decay->to_end_backward(product(x, transposed(walked.states)), c.key, grad.k);
  std::vector<Tensor> grad_scores = {product(grad_o, transposed(x)).tril_()}, queries = {in.q}, grad_queries = {grad.q};
  if (r.delta) {  // with R = (I + A)^-T dU: d(V - aK S) = beta R = dV and dA = -R U^T
    const Tensor solved = product(transposed(c.inverse), walked.x);
    grad.v = solved * in.beta;
    const Tensor missing = in.v - product(c.reader, states);
    decay->from_start_backward(product(grad.v, transposed(states)).neg_(), c.reader, grad.k);
    const Tensor grad_inside = product(solved, transposed(x)).neg_();
    grad.beta = (row_dot(solved, missing) + row_dot(grad_inside, c.self_scores)).unsqueeze(-1);
    grad_scores.push_back(grad_inside.mul_(in.beta).tril_(-1));
    queries.push_back(in.k);
    grad_queries.push_back(grad.k);
  }
  decay->scores_backward(grad_scores, queries, in.k, grad_queries, grad.k);
  grad.log_alpha = decay->log_alpha_gradient();
  return grad;
}

// Gates of columns.
struct ColumnChunks {
  Sm90RowGates decay;
  Tensor value;  // bV
  Operands operands;
  Walked walked;

  ColumnChunks(const SegmentInputs& in, const Tensor& state) : decay(in.log_alpha), value(decay.to_end(in.v)) {
    operands.base = value;
    operands.write = in.k;
    operands.whole = decay.whole();
    operands.columns = true;
    walked = walk(operands, state);
  }
};

Tensor columns_forward(const Recurrence&, const SegmentInputs& given, const Tensor& state) {
  const SegmentInputs in = plain(given);
  const ColumnChunks c(in, state);
  const Tensor read = product(in.q, c.walked.states);
  return c.decay.apply(product(in.q, transposed(in.k)).tril_(), in.v).add_(c.decay.from_start(read));
}

SegmentGradients columns_backward(const Recurrence&, const SegmentInputs& given, const Tensor& state, const Tensor& upstream,
                                  const Tensor& grad_state) {
  const SegmentInputs in = plain(given);
  const Tensor grad_o = upstream.contiguous();
  ColumnChunks c(in, state);
  const Tensor& states = c.walked.states;
  SegmentGradients grad;
  const Tensor grad_read = cleared(in.v);
  c.decay.from_start_backward(grad_o, c.decay.from_start(product(in.q, states)), grad_read);
  Operands back;
  back.backward = true;
  back.base = grad_read;
  back.write = in.q;
  back.whole = c.operands.whole;
  back.columns = true;
  const Tensor grad_states = walk(back, grad_state).states;
  grad.q = product(grad_read, transposed(states));
  grad.k = product(c.value, transposed(grad_states));
  grad.v = cleared(in.v);
  c.decay.to_end_backward(product(in.k, grad_states), c.value, grad.v);
  c.decay.whole_backward(whole_gradient(back, states, grad_states));
  const Tensor weights = product(in.q, transposed(in.k)).tril_();
  const Tensor grad_weights = c.decay.scores({grad_o}, in.v)[0];
  c.decay.scores_backward({weights}, {grad_o}, in.v, {Tensor()}, grad.v);
  add_product(grad.q, grad_weights, in.k);
  add_product(grad.k, transposed(grad_weights), in.q);
  grad.log_alpha = c.decay.log_alpha_gradient();
  return grad;
}

constexpr SegmentPass kRows{rows_forward, rows_backward};
constexpr SegmentPass kColumns{columns_forward, columns_backward};

const SegmentPass& pass_of(const Recurrence& r) { return r.gate == Gate::kColumn ? kColumns : kRows; }

// Whole sequences up to 32,768 tokens, and as many of them together as keep the temporary tensors of a layer at a few GiB.
RecurrenceSettings settings_of(const RecurrenceSizes& s, const RecurrenceSettings& given) {
  constexpr int64_t kChunks = 512;
  constexpr int64_t kTokenHeads = 1 << 18;
  RecurrenceSettings settings = given;
  settings.size.chunk = recurrence::kWalkChunk;
  settings.size.chunks = kChunks;
  settings.size.whole_chunks = true;
  const int64_t length = std::clamp<int64_t>(s.B * s.T / std::max<int64_t>(s.N, 1), 1, kChunks * recurrence::kWalkChunk);
  settings.size.lanes = std::max<int64_t>(1, kTokenHeads / (length * s.H));
  return settings;
}

std::string refusal(const Recurrence& r, const RecurrenceInputs& in) {
  if (!in.q.is_cuda()) return "q is on " + in.q.device().str() + ", the kernels run on CUDA";
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, in.q.get_device()));
  if (major != 9) return "the GPU has compute capability " + std::to_string(major) + ".x, the kernels are for Hopper (9.0)";
  if (in.q.scalar_type() != at::kBFloat16) return "q is not bf16";
  if (in.q.size(-2) != in.v.size(-2)) return scalar_chunks_refusal(r, in);
  const char* reason = recurrence::walk_refusal(in.q.size(-1), in.v.size(-1));
  return reason != nullptr ? reason : "";
}

std::vector<Tensor> empty_saved(const at::TensorOptions& q, const RecurrenceSizes& s, const RecurrenceSettings& settings) {
  return empty_segment_states(q, s, settings_of(s, settings));
}

RecurrenceForward forward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings) {
  const c10::cuda::CUDAGuard guard(in.q.device());
  const RecurrenceSettings own = settings_of(recurrence_sizes(in), settings);
  return scalar_chunks_refusal(r, in).empty() ? scalar_chunks_forward(r, in, own) : forward_by_segments(r, pass_of(r), in, own);
}

RecurrenceGradients backward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings, at::TensorList saved,
                             const Tensor& grad_o, const Tensor& grad_final) {
  const c10::cuda::CUDAGuard guard(in.q.device());
  const RecurrenceSettings own = settings_of(recurrence_sizes(in), settings);
  if (scalar_chunks_refusal(r, in).empty()) return scalar_chunks_backward(r, in, own, saved, grad_o, grad_final);
  return backward_by_segments(r, pass_of(r), in, own, saved, grad_o, grad_final);
}

}  // namespace

RecurrenceBackend recurrence_sm90() { return {Backend::kSm90, refusal, forward, backward, empty_saved, nullptr}; }

}  // namespace cyfa::ops
