// The linear attention interfaces of the paper's Table 1: a line of a table each, the checks that they share, and their public calls.
#include "cyfa/ops/recurrence/recurrence.h"

#include <stdexcept>

#include "cyfa/ops/common/check.h"
#include "cyfa/ops/recurrence/column_gated_la.h"
#include "cyfa/ops/recurrence/delta_rule.h"
#include "cyfa/ops/recurrence/fixed_scalar_gated_la.h"
#include "cyfa/ops/recurrence/impl.h"
#include "cyfa/ops/recurrence/la.h"
#include "cyfa/ops/recurrence/row_gated_delta_rule.h"
#include "cyfa/ops/recurrence/row_gated_la.h"
#include "cyfa/ops/recurrence/scalar_gated_delta_rule.h"
#include "cyfa/ops/recurrence/scalar_gated_la.h"

namespace cyfa::ops {

using at::Tensor;

const std::vector<Recurrence>& recurrences() {
  static const std::vector<Recurrence> all = {{"la", Gate::kNone, false},
                                              {"fixed_scalar_gated_la", Gate::kScalar, false, /*fixed=*/true},
                                              {"scalar_gated_la", Gate::kScalar, false},
                                              {"row_gated_la", Gate::kRow, false},
                                              {"column_gated_la", Gate::kColumn, false},
                                              {"delta_rule", Gate::kNone, true},
                                              {"scalar_gated_delta_rule", Gate::kScalar, true},
                                              {"row_gated_delta_rule", Gate::kRow, true}};
  return all;
}

const Recurrence& recurrence_of(std::string_view op) {
  for (const Recurrence& r : recurrences()) {
    if (op == r.op) return r;
  }
  throw std::out_of_range("no recurrence is called " + std::string(op));
}

void spread_fixed_gate(const Recurrence& r, RecurrenceInputs& in, int64_t rank) {
  if (!r.fixed || !in.q.defined() || in.q.dim() != rank) return;
  const Tensor log_gamma = in.log_alpha.value_or(Tensor());
  check::shape(r.op, "log_gamma", log_gamma, {{"H", in.q.size(-2)}});
  check::floating(r.op, "log_gamma", log_gamma);
  check::same_device(r.op, "log_gamma", log_gamma, "q", in.q.device());
  check::log_alpha(r.op, log_gamma, "log_gamma");
  // In double, as the gates are used, so that the sum over all tokens that is its gradient loses nothing.
  in.log_alpha = log_gamma.to(at::kDouble).expand(in.q.sizes().slice(0, static_cast<size_t>(rank) - 1));
}

RecurrenceSizes check_recurrence(const Recurrence& r, const RecurrenceInputs& in) {
  check::shape(r.op, "q", in.q, {{"B", -1}, {"T", -1}, {"H", -1}, {"K", -1}});
  RecurrenceSizes s{};
  s.B = in.q.size(0);
  s.T = in.q.size(1);
  s.H = in.q.size(2);
  s.K = in.q.size(3);
  check::shape(r.op, "k", in.k, {{"B", s.B}, {"T", s.T}, {"H", s.H}, {"K", s.K}});
  check::shape(r.op, "v", in.v, {{"B", s.B}, {"T", s.T}, {"H", s.H}, {"V", -1}});
  s.V = in.v.size(3);
  check::widths(r.op, s.H, s.K, s.V);
  check::floating(r.op, "q", in.q);
  check::same_dtype(r.op, "k", in.k, "q", in.q.scalar_type());
  check::same_dtype(r.op, "v", in.v, "q", in.q.scalar_type());
  check::same_device(r.op, "k", in.k, "q", in.q.device());
  check::same_device(r.op, "v", in.v, "q", in.q.device());
  if (r.gate != Gate::kNone) {
    const Tensor log_alpha = in.log_alpha.value_or(Tensor());
    switch (r.gate) {
      case Gate::kRow: check::shape(r.op, "log_alpha", log_alpha, {{"B", s.B}, {"T", s.T}, {"H", s.H}, {"K", s.K}}); break;
      case Gate::kColumn: check::shape(r.op, "log_alpha", log_alpha, {{"B", s.B}, {"T", s.T}, {"H", s.H}, {"V", s.V}}); break;
      default: check::shape(r.op, "log_alpha", log_alpha, {{"B", s.B}, {"T", s.T}, {"H", s.H}}); break;
    }
    check::floating(r.op, "log_alpha", log_alpha);
    check::same_device(r.op, "log_alpha", log_alpha, "q", in.q.device());
  }
  if (r.delta) {
    const Tensor beta = in.beta.value_or(Tensor());
    check::shape(r.op, "beta", beta, {{"B", s.B}, {"T", s.T}, {"H", s.H}});
    check::floating(r.op, "beta", beta);
    check::same_device(r.op, "beta", beta, "q", in.q.device());
  }
  s.packed = in.cu_seqlens.has_value();
  if (s.packed) check::borders(r.op, *in.cu_seqlens, s.B, in.q.device());
  s.N = s.packed ? in.cu_seqlens->numel() - 1 : s.B;
  s.compute = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (in.initial_state) {
    check::shape(r.op, "initial_state", *in.initial_state, {{"N", s.N}, {"H", s.H}, {"K", s.K}, {"V", s.V}});
    check::same_dtype(r.op, "initial_state", *in.initial_state, "the compute type of q", s.compute);
    check::same_device(r.op, "initial_state", *in.initial_state, "q", in.q.device());
  }
  return s;
}

std::vector<int64_t> recurrence_offsets(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSizes& s) {
  return s.packed ? check::sequence_offsets(r.op, *in.cu_seqlens, s.T) : batch_offsets(s.B, s.T);
}

RecurrenceForward empty_forward(const RecurrenceInputs& in, const RecurrenceSizes& s, const SegmentSize& size, Backend backend) {
  const auto compute = in.q.options().dtype(s.compute);
  const int64_t rows = backend == Backend::kPortable ? saved_state_rows(s.packed, s.B, s.T, size) : 0;
  return {at::empty({s.B, s.T, s.H, s.V}, in.v.options()), at::empty({s.N, s.H, s.K, s.V}, compute),
          at::empty({rows, s.H, s.K, s.V}, compute)};
}

RecurrenceGradients empty_gradients(const RecurrenceInputs& in, const RecurrenceSizes& s) {
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const auto like_given = [&](const std::optional<Tensor>& x) { return x ? like(*x) : Tensor(); };
  return {like(in.q),          like(in.k),
          like(in.v),          like_given(in.log_alpha),
          like_given(in.beta), at::empty({s.N, s.H, s.K, s.V}, in.q.options().dtype(s.compute))};
}

RecurrenceOutput la(const LaInputs& in, const LaOptions& options) {
  return run_recurrence(recurrence_of("la"), {in.q, in.k, in.v, {}, {}, in.initial_state, in.cu_seqlens}, options);
}

at::Tensor la_step(const LaStepInputs& in, const Tensor& state, const LaOptions& options) {
  return step_recurrence(recurrence_of("la"), {in.q, in.k, in.v, {}, {}, {}, {}}, state, options);
}

RecurrenceOutput fixed_scalar_gated_la(const FixedScalarGatedLaInputs& in, const FixedScalarGatedLaOptions& options) {
  return run_recurrence(recurrence_of("fixed_scalar_gated_la"), {in.q, in.k, in.v, in.log_gamma, {}, in.initial_state, in.cu_seqlens},
                        options);
}

at::Tensor fixed_scalar_gated_la_step(const FixedScalarGatedLaStepInputs& in, const Tensor& state,
                                      const FixedScalarGatedLaOptions& options) {
  return step_recurrence(recurrence_of("fixed_scalar_gated_la"), {in.q, in.k, in.v, in.log_gamma, {}, {}, {}}, state, options);
}

RecurrenceOutput scalar_gated_la(const ScalarGatedLaInputs& in, const ScalarGatedLaOptions& options) {
  return run_recurrence(recurrence_of("scalar_gated_la"), {in.q, in.k, in.v, in.log_alpha, {}, in.initial_state, in.cu_seqlens}, options);
}

at::Tensor scalar_gated_la_step(const ScalarGatedLaStepInputs& in, const Tensor& state, const ScalarGatedLaOptions& options) {
  return step_recurrence(recurrence_of("scalar_gated_la"), {in.q, in.k, in.v, in.log_alpha, {}, {}, {}}, state, options);
}

RecurrenceOutput row_gated_la(const RowGatedLaInputs& in, const RowGatedLaOptions& options) {
  return run_recurrence(recurrence_of("row_gated_la"), {in.q, in.k, in.v, in.log_alpha, {}, in.initial_state, in.cu_seqlens}, options);
}

at::Tensor row_gated_la_step(const RowGatedLaStepInputs& in, const Tensor& state, const RowGatedLaOptions& options) {
  return step_recurrence(recurrence_of("row_gated_la"), {in.q, in.k, in.v, in.log_alpha, {}, {}, {}}, state, options);
}

RecurrenceOutput column_gated_la(const ColumnGatedLaInputs& in, const ColumnGatedLaOptions& options) {
  return run_recurrence(recurrence_of("column_gated_la"), {in.q, in.k, in.v, in.log_alpha, {}, in.initial_state, in.cu_seqlens}, options);
}

at::Tensor column_gated_la_step(const ColumnGatedLaStepInputs& in, const Tensor& state, const ColumnGatedLaOptions& options) {
  return step_recurrence(recurrence_of("column_gated_la"), {in.q, in.k, in.v, in.log_alpha, {}, {}, {}}, state, options);
}

RecurrenceOutput delta_rule(const DeltaRuleInputs& in, const DeltaRuleOptions& options) {
  return run_recurrence(recurrence_of("delta_rule"), {in.q, in.k, in.v, {}, in.beta, in.initial_state, in.cu_seqlens}, options);
}

at::Tensor delta_rule_step(const DeltaRuleStepInputs& in, const Tensor& state, const DeltaRuleOptions& options) {
  return step_recurrence(recurrence_of("delta_rule"), {in.q, in.k, in.v, {}, in.beta, {}, {}}, state, options);
}

RecurrenceOutput scalar_gated_delta_rule(const ScalarGatedDeltaRuleInputs& in, const ScalarGatedDeltaRuleOptions& options) {
  return run_recurrence(recurrence_of("scalar_gated_delta_rule"),
                        {in.q, in.k, in.v, in.log_alpha, in.beta, in.initial_state, in.cu_seqlens}, options);
}

at::Tensor scalar_gated_delta_rule_step(const ScalarGatedDeltaRuleStepInputs& in, const Tensor& state,
                                        const ScalarGatedDeltaRuleOptions& options) {
  return step_recurrence(recurrence_of("scalar_gated_delta_rule"), {in.q, in.k, in.v, in.log_alpha, in.beta, {}, {}}, state, options);
}

RecurrenceOutput row_gated_delta_rule(const RowGatedDeltaRuleInputs& in, const RowGatedDeltaRuleOptions& options) {
  return run_recurrence(recurrence_of("row_gated_delta_rule"), {in.q, in.k, in.v, in.log_alpha, in.beta, in.initial_state, in.cu_seqlens},
                        options);
}

at::Tensor row_gated_delta_rule_step(const RowGatedDeltaRuleStepInputs& in, const Tensor& state, const RowGatedDeltaRuleOptions& options) {
  return step_recurrence(recurrence_of("row_gated_delta_rule"), {in.q, in.k, in.v, in.log_alpha, in.beta, {}, {}}, state, options);
}

}  // namespace cyfa::ops
