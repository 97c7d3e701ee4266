#include "cyfa/mixers/call.h"

#include "cyfa/ops/dense/short_conv.h"
#include "cyfa/ops/recurrence/column_gated_la.h"
#include "cyfa/ops/recurrence/delta_rule.h"
#include "cyfa/ops/recurrence/fixed_scalar_gated_la.h"
#include "cyfa/ops/recurrence/la.h"
#include "cyfa/ops/recurrence/row_gated_delta_rule.h"
#include "cyfa/ops/recurrence/row_gated_la.h"
#include "cyfa/ops/recurrence/scalar_gated_delta_rule.h"
#include "cyfa/ops/recurrence/scalar_gated_la.h"

namespace cyfa {
namespace {

std::optional<at::Tensor> bias_of(const Weights& w, const std::optional<ParameterId>& bias, at::ScalarType type) {
  return bias ? std::optional(w[*bias].to(type)) : std::nullopt;
}

}  // namespace

at::Tensor Call::linear(const at::Tensor& y, ParameterId weight, std::optional<ParameterId> bias) const {
  const std::optional<at::Tensor> b = bias_of(w_, bias, y.scalar_type());
  if (!is_step()) return ops::linear(y, w_[weight], b);
  std::vector<int64_t> shape = y.sizes().vec();
  shape.back() = w_[weight].size(0);
  return ops::linear_step(y.reshape({-1, y.size(-1)}), w_[weight], b).view(shape);
}

std::vector<at::Tensor> Call::project(const std::vector<Projection>& projections) const {
  std::vector<ops::LinearWeight> weights;
  for (const Projection& p : projections) weights.push_back({w_[p.weight], bias_of(w_, p.bias, x_.scalar_type())});
  if (is_step()) return ops::linear_steps(x_, weights);
  std::vector<at::Tensor> out;
  for (const ops::LinearWeight& weight : weights) out.push_back(ops::linear(x_, weight.weight, weight.bias));
  return out;
}

at::Tensor Call::short_conv(const at::Tensor& y, ParameterId weight, std::optional<ParameterId> bias, size_t part) {
  const std::optional<at::Tensor> b = bias ? std::optional(w_[*bias]) : std::nullopt;
  if (is_step()) return ops::short_conv_step(y, w_[weight], b, (*state_)[part]);
  ops::ShortConvOutput out = ops::short_conv(y, w_[weight], b, initial(part), cu_seqlens_);
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
  const at::Tensor tokens = lengths(), seen = before(part).defined() ? before(part) : at::zeros_like(tokens);
  if (!cu_seqlens_) return seen.unsqueeze(1) + at::arange(x_.size(1), options);
  return (at::arange(x_.size(1), options) + (seen - starts()).repeat_interleave(tokens)).unsqueeze(0);
}

at::Tensor Call::count_positions(size_t part) {
  const at::Tensor now = positions(part);
  after(part, before(part).defined() ? before(part) + lengths() : lengths());
  return now;
}

at::Tensor Call::starts() const { return cu_seqlens_->to(x_.device(), at::kLong).slice(0, 0, -1); }

at::Tensor Call::rows_before(const at::Tensor& values, std::optional<size_t> part) const {
  const at::ScalarType type = at::promote_types(values.scalar_type(), at::kFloat);
  if (part && before(*part).defined()) return before(*part).flatten(1).to(type);
  return at::zeros({lengths().size(0), values.size(2)}, values.options().dtype(type));
}

at::Tensor Call::preceding(const at::Tensor& values, std::optional<size_t> part) const {
  const int64_t T = values.size(1);
  const at::Tensor old = rows_before(values, part), now = values.to(old.scalar_type());
  if (T == 0) return now;
  if (!cu_seqlens_) return at::cat({old.unsqueeze(1), now.narrow(1, 0, T - 1)}, 1);
  // Row n is what sequence n begins with, row N + t token t: a token's predecessor is the row before its own, but for the first of a
  // sequence.
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
  return initial_ == nullptr ? at::Tensor() : (*initial_)[part];
}

void Call::after(size_t part, const at::Tensor& value) {
  if (is_step()) {
    (*state_)[part].copy_(value);
  } else {
    final_[part] = value;
  }
}

// Sums are fp32, or fp64 in a model of fp64.
std::optional<at::Tensor> Call::initial(size_t part) const {
  if (initial_ == nullptr) return std::nullopt;
  return (*initial_)[part].to(at::promote_types(x_.scalar_type(), at::kFloat));
}

at::Tensor Call::finish(size_t part, const ops::RecurrenceOutput& out) {
  final_[part] = out.final_state;
  return out.o;
}

at::Tensor Call::la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ops::RecurrenceOptions& options) {
  if (is_step()) return ops::la_step({q, k, v}, (*state_)[part], options);
  return finish(part, ops::la({q, k, v, initial(part), cu_seqlens_}, options));
}

at::Tensor Call::fixed_scalar_gated_la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const at::Tensor& log_gamma, const ops::RecurrenceOptions& options) {
  if (is_step()) return ops::fixed_scalar_gated_la_step({q, k, v, log_gamma}, (*state_)[part], options);
  return finish(part, ops::fixed_scalar_gated_la({q, k, v, log_gamma, initial(part), cu_seqlens_}, options));
}

at::Tensor Call::scalar_gated_la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha,
                                 const ops::RecurrenceOptions& options) {
  if (is_step()) return ops::scalar_gated_la_step({q, k, v, log_alpha}, (*state_)[part], options);
  return finish(part, ops::scalar_gated_la({q, k, v, log_alpha, initial(part), cu_seqlens_}, options));
}

at::Tensor Call::row_gated_la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha,
                              const ops::RecurrenceOptions& options) {
  if (is_step()) return ops::row_gated_la_step({q, k, v, log_alpha}, (*state_)[part], options);
  return finish(part, ops::row_gated_la({q, k, v, log_alpha, initial(part), cu_seqlens_}, options));
}

at::Tensor Call::column_gated_la(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha,
                                 const ops::RecurrenceOptions& options) {
  if (is_step()) return ops::column_gated_la_step({q, k, v, log_alpha}, (*state_)[part], options);
  return finish(part, ops::column_gated_la({q, k, v, log_alpha, initial(part), cu_seqlens_}, options));
}

at::Tensor Call::delta_rule(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                            const ops::RecurrenceOptions& options) {
  if (is_step()) return ops::delta_rule_step({q, k, v, beta}, (*state_)[part], options);
  return finish(part, ops::delta_rule({q, k, v, beta, initial(part), cu_seqlens_}, options));
}

at::Tensor Call::scalar_gated_delta_rule(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                                         const at::Tensor& log_alpha, const ops::RecurrenceOptions& options) {
  if (is_step()) return ops::scalar_gated_delta_rule_step({q, k, v, beta, log_alpha}, (*state_)[part], options);
  return finish(part, ops::scalar_gated_delta_rule({q, k, v, beta, log_alpha, initial(part), cu_seqlens_}, options));
}

at::Tensor Call::row_gated_delta_rule(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& beta,
                                      const at::Tensor& log_alpha, const ops::RecurrenceOptions& options) {
  if (is_step()) return ops::row_gated_delta_rule_step({q, k, v, beta, log_alpha}, (*state_)[part], options);
  return finish(part, ops::row_gated_delta_rule({q, k, v, beta, log_alpha, initial(part), cu_seqlens_}, options));
}

at::Tensor Call::attention(size_t part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window) {
  if (is_step()) {
    ops::AttentionCache cache{(*state_)[part], (*state_)[part + 1], (*state_)[part + 2]};
    const at::Tensor o = ops::attention_step(q, k, v, cache, window);
    (*state_)[part] = cache.k;
    (*state_)[part + 1] = cache.v;
    return o;
  }
  ops::AttentionInputs in{q, k, v, std::nullopt, cu_seqlens_, window};
  if (initial_ != nullptr) in.initial = {(*initial_)[part], (*initial_)[part + 1], (*initial_)[part + 2]};
  ops::AttentionOutput out = ops::attention(in);
  final_[part] = out.cache.k;
  final_[part + 1] = out.cache.v;
  final_[part + 2] = out.cache.tokens;
  return out.o;
}

}  // namespace cyfa
