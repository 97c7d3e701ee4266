#include "cyfa/mixers/call.h"

#include <stdexcept>

#include "cyfa/mixers/cut.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/attention.h"
#include "cyfa/ops/dense/short_conv.h"

namespace cyfa {
namespace {

std::optional<at::Tensor> bias_of(const Weights& w, const std::optional<ParameterId>& bias, at::ScalarType type) {
  return bias ? std::optional(w[*bias].to(type)) : std::nullopt;
}

[[noreturn]] void refuse_cut(const std::string& what) {
  ops::check::fail("context parallel", what +
                                           " has no exchange between the ranks that a sequence is cut over; the scalar-gated "
                                           "recurrences have one (cyclic flow, RetNet, Mamba-2, linear attention), others need "
                                           "context_ranks = 1");
}

bool owns_memory(const at::Tensor& x) { return x.is_contiguous() && x.storage().use_count() == 1 && x.storage().nbytes() == x.nbytes(); }

}  // namespace

MixerState Call::take_final_state() {
  for (at::Tensor& x : final_) {
    if (x.defined() && !owns_memory(x)) x = x.clone(at::MemoryFormat::Contiguous);
  }
  return std::move(final_);
}

at::Tensor Call::linear(const at::Tensor& y, ParameterId weight, std::optional<ParameterId> bias) const {
  const std::optional<at::Tensor> b = bias_of(w_, bias, y.scalar_type());
  if (!is_step()) return ops::linear(y, w_[weight], b);
  std::vector<int64_t> shape = y.sizes().vec();
  shape.back() = w_[weight].size(0);
  return ops::linear_step(y.reshape({-1, y.size(-1)}), w_[weight], b).view(shape);
}

Call::Projections::Projections(const Call& call, const std::vector<Projection>& projections) : call_(call) {
  for (const Projection& p : projections) entries_.push_back({p, {}});
}

const at::Tensor& Call::Projections::operator[](ParameterId weight) {
  for (Entry& entry : entries_) {
    if (entry.projection.weight != weight) continue;
    if (!entry.value.defined()) {
      const Projection& p = entry.projection;
      const at::Tensor x = p.stops_gradient ? call_.x_.detach() : call_.x_;
      entry.value = p.bias_after ? ops::linear(x, call_.w_[p.weight]) + call_.w_[*p.bias]
                                 : ops::linear(x, call_.w_[p.weight], bias_of(call_.w_, p.bias, x.scalar_type()));
    }
    return entry.value;
  }
  throw std::logic_error("projection: parameter " + std::to_string(weight) + " was not asked for");
}

Call::Projections Call::project(const std::vector<Projection>& projections, When when) const {
  Projections y(*this, projections);
  if (is_step()) {
    std::vector<ops::LinearWeight> weights;
    for (const Projection& p : projections) weights.push_back({w_[p.weight], bias_of(w_, p.bias, x_.scalar_type())});
    std::vector<at::Tensor> values = ops::linear_steps(x_, weights);
    for (size_t i = 0; i < values.size(); ++i) y.entries_[i].value = std::move(values[i]);
  } else if (when == When::kNow) {
    for (const Projection& p : projections) y[p.weight];
  }
  return y;
}

at::Tensor Call::short_conv(const at::Tensor& y, ParameterId weight, std::optional<ParameterId> bias, size_t part) {
  const std::optional<at::Tensor> b = bias ? std::optional(w_[*bias]) : std::nullopt;
  if (is_step()) return ops::short_conv_step(y, w_[weight], b, (*state_)[part]);
  std::optional<at::Tensor> before = initial(part);
  if (const SequenceCut* cut = w_.cut()) before = tokens_before(*cut, y, w_[weight].size(-1), lengths().size(0));
  ops::ShortConvOutput out = ops::short_conv(y, w_[weight], b, before, cu_seqlens_);
  final_[part] = out.final_state.to(at::promote_types(out.final_state.scalar_type(), at::kFloat));
  return out.y;
}

at::Tensor Call::lengths() const {
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(x_.device());
  if (is_step()) return at::ones({x_.size(0)}, options);
  if (!cu_seqlens_) return at::full({x_.size(0)}, x_.size(1), options);
  const at::Tensor borders = cu_seqlens_->to(options.device(), at::kLong);
  return borders.slice(0, 1) - borders.slice(0, 0, -1);
}

at::Tensor Call::positions(size_t part) const {
  if (is_step()) return (*state_)[part].clone();
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(x_.device());
  const at::Tensor tokens = lengths();
  at::Tensor seen = at::zeros_like(tokens);
  if (w_.cut() != nullptr) {
    seen[0] = w_.cut()->tokens_before;
  } else if (before(part).defined()) {
    seen = before(part);
  }
  if (!cu_seqlens_) return seen.unsqueeze(1) + at::arange(x_.size(1), options);
  return (at::arange(x_.size(1), options) + (seen - starts()).repeat_interleave(tokens)).unsqueeze(0);
}

at::Tensor Call::count_positions(size_t part) {
  const at::Tensor now = positions(part);
  after(part, w_.cut() == nullptr && before(part).defined() ? before(part) + lengths() : lengths());
  return now;
}

at::Tensor Call::starts() const { return cu_seqlens_->to(x_.device(), at::kLong).slice(0, 0, -1); }

at::Tensor Call::rows_before(const at::Tensor& values, std::optional<size_t> part) const {
  if (w_.cut() != nullptr) refuse_cut("a shift by one token");
  const at::ScalarType type = at::promote_types(values.scalar_type(), at::kFloat);
  if (part && before(*part).defined()) return before(*part).flatten(1).to(type);
  return at::zeros({lengths().size(0), values.size(2)}, values.options().dtype(type));
}

at::Tensor Call::preceding(const at::Tensor& values, std::optional<size_t> part) const {
  const int64_t T = values.size(1);
  const at::Tensor old = rows_before(values, part), now = values.to(old.scalar_type());
  if (T == 0) return now;
  if (!cu_seqlens_) return at::cat({old.unsqueeze(1), now.narrow(1, 0, T - 1)}, 1);
  // In the concatenation below, row n is the initial value of sequence n and row N + t is token t. The predecessor of token t is row
  // N + t - 1, except for the first token of a sequence n, whose predecessor is row n.
  const at::Tensor n = lengths(), some = n.gt(0);
  const at::Tensor place =
      (at::arange(T, n.options()) + (n.size(0) - 1)).index_put({starts().index({some})}, at::arange(n.size(0), n.options()).index({some}));
  return at::cat({old, now.squeeze(0)}, 0).index_select(0, place).unsqueeze(0);
}

at::Tensor Call::last(const at::Tensor& values, std::optional<size_t> part) const {
  if (is_step()) return values;
  const at::Tensor old = rows_before(values, part), now = values.to(old.scalar_type());
  if (!cu_seqlens_) return values.size(1) == 0 ? old : now.select(1, values.size(1) - 1);
  const at::Tensor n = lengths();
  const at::Tensor place = at::where(n.gt(0), n.size(0) + starts() + n - 1, at::arange(n.size(0), n.options()));
  return at::cat({old, now.squeeze(0)}, 0).index_select(0, place);
}

at::Tensor Call::before(size_t part) const {
  if (is_step()) return (*state_)[part];
  if (w_.cut() != nullptr) refuse_cut("a state of this mixer");
  return initial_ == nullptr ? at::Tensor() : (*initial_)[part];
}

void Call::after(size_t part, const at::Tensor& value) {
  if (is_step()) {
    (*state_)[part].copy_(value);
  } else {
    final_[part] = value;
  }
}

// Initial states are passed to the ops in fp32, or in fp64 for fp64 activations.
std::optional<at::Tensor> Call::initial(size_t part) const {
  if (initial_ == nullptr) return std::nullopt;
  return (*initial_)[part].to(at::promote_types(x_.scalar_type(), at::kFloat));
}

at::Tensor Call::recurrence(const char* op, size_t part, ops::RecurrenceInputs in, ops::RecurrenceOptions options) {
  const ops::Recurrence& r = ops::recurrence_of(op);
  if (is_step()) {
    const int64_t each = in.v.size(-2) / in.q.size(-2);
    if (each > 1) in.q = in.q.repeat_interleave(each, -2);
    if (each > 1) in.k = in.k.repeat_interleave(each, -2);
    return ops::step_recurrence(r, std::move(in), (*state_)[part], options);
  }
  options.shared_keys = true;
  in.initial_state = initial(part);
  if (const SequenceCut* cut = w_.cut()) {
    if (r.delta || (r.gate != ops::Gate::kNone && r.gate != ops::Gate::kScalar)) refuse_cut(std::string("the recurrence ") + op);
    at::Tensor gate = in.log_alpha.value_or(at::Tensor());
    if (gate.defined() && gate.dim() == 1) gate = gate.expand(in.v.sizes().slice(0, 3));  // a fixed gate [H]
    in.initial_state = recurrence_before(*cut, in.k, in.v, gate, lengths().size(0));
  }
  in.cu_seqlens = cu_seqlens_;
  ops::RecurrenceOutput out = ops::run_recurrence(r, std::move(in), options);
  final_[part] = out.final_state;
  return out.o;
}

at::Tensor Call::cyclic_flow(size_t part, ops::CyclicFlowInputs in, const ops::CyclicFlowOptions& options, ParameterId table) {
  if (is_step()) {
    ops::CyclicFlowStepInputs step;
    step.q = in.q;
    step.k = in.k;
    step.v = in.v;
    step.log_alpha = in.log_alpha;
    step.delta = in.delta;
    step.beta = in.beta;
    step.readout_table = w_.once(table, [&](const at::Tensor&) { return ops::cyclic_flow_readout_table(in.readout); });
    step.q_norm_weight = in.q_norm_weight;
    step.k_norm_weight = in.k_norm_weight;
    return ops::cyclic_flow_step(step, {(*state_)[part], (*state_)[part + 1], (*state_)[part + 2]}, options);
  }
  if (initial_ != nullptr) in.initial_state = {(*initial_)[part], (*initial_)[part + 1], (*initial_)[part + 2]};
  if (const SequenceCut* cut = w_.cut()) {
    const int64_t sequences = lengths().size(0), H = in.k.size(2);
    const FlowBefore before = flow_before(*cut, in, options.norm_eps, sequences);
    in.initial_state = {before.k, before.v, at::zeros({sequences, H}, before.k.options().dtype(at::kDouble))};
  }
  in.cu_seqlens = cu_seqlens_;
  const ops::CyclicFlowOutput out = ops::cyclic_flow(in, options);
  if (flow_hook_) flow_hook_(in, options, out.o);
  final_[part] = out.final_state.k;
  final_[part + 1] = out.final_state.v;
  final_[part + 2] = out.final_state.clock;
  return out.o;
}

at::Tensor Call::attention(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window) {
  if (is_step()) {
    ops::AttentionCache cache{(*state_)[part], (*state_)[part + 1], (*state_)[part + 2]};
    const at::Tensor o = ops::attention_step(q, k, v, cache, window);
    (*state_)[part] = cache.k;
    (*state_)[part + 1] = cache.v;
    return o;
  }
  if (w_.cut() != nullptr) refuse_cut("softmax attention");
  ops::AttentionInputs in{q, k, v, std::nullopt, cu_seqlens_, window};
  if (initial_ != nullptr) in.initial = {(*initial_)[part], (*initial_)[part + 1], (*initial_)[part + 2]};
  ops::AttentionOutput out = ops::attention(in);
  final_[part] = out.cache.k;
  final_[part + 1] = out.cache.v;
  final_[part + 2] = out.cache.tokens;
  return out.o;
}

}  // namespace cyfa
