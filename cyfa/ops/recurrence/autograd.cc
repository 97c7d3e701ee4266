// The recurrences in torch's dispatcher: one pair of kernels for all, named by the interface, autograd around it, and a public op and a
// step for each interface.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

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
namespace {

using at::Tensor;
using c10::string_view;
using OptionalTensor = std::optional<Tensor>;
using TensorVector = std::vector<Tensor>;
using ForwardResult = std::tuple<Tensor, Tensor, Tensor>;
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

std::string_view text(string_view x) { return {x.data(), x.size()}; }
SegmentSize size_of(at::IntArrayRef x) { return {x[0], x[1], x[2]}; }

ForwardResult forward_kernel(string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_alpha,
                             const OptionalTensor& beta, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                             double scale, at::IntArrayRef size, string_view backend) {
  const Recurrence& r = recurrence_of(text(op));
  const RecurrenceInputs in{q, k, v, log_alpha, beta, initial_state, cu_seqlens};
  check_recurrence(r, in);
  if (log_alpha) check::log_alpha(r.op, *log_alpha);
  const bool reference = parse_backend(text(backend)) == Backend::kReference;
  const RecurrenceForward out = reference ? reference_forward(r, in, scale) : portable_forward(r, in, size_of(size), scale);
  return {out.o, out.final_state, out.saved};
}

ForwardResult forward_meta(string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_alpha,
                           const OptionalTensor& beta, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, double,
                           at::IntArrayRef size, string_view backend) {
  const RecurrenceInputs in{q, k, v, log_alpha, beta, initial_state, cu_seqlens};
  const RecurrenceForward out =
      empty_forward(in, check_recurrence(recurrence_of(text(op)), in), size_of(size), parse_backend(text(backend)));
  return {out.o, out.final_state, out.saved};
}

// A schema's result is a tensor; where there is no such input it is an empty one.
BackwardResult results(const RecurrenceGradients& g) {
  const auto some = [&](const Tensor& x) { return x.defined() ? x : at::empty({0}, g.q.options()); };
  return {g.q, g.k, g.v, some(g.log_alpha), some(g.beta), g.initial_state};
}

BackwardResult backward_kernel(string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_alpha,
                               const OptionalTensor& beta, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                               const Tensor& saved, const OptionalTensor& grad_o, const OptionalTensor& grad_final, double scale,
                               at::IntArrayRef size, string_view backend) {
  const Recurrence& r = recurrence_of(text(op));
  const RecurrenceInputs in{q, k, v, log_alpha, beta, initial_state, cu_seqlens};
  const Tensor upstream = grad_o.value_or(Tensor());
  const Tensor last = grad_final.value_or(Tensor());
  const bool reference = parse_backend(text(backend)) == Backend::kReference;
  return results(reference ? reference_backward(r, in, scale, upstream, last)
                           : portable_backward(r, in, size_of(size), scale, saved, upstream, last));
}

BackwardResult backward_meta(string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_alpha,
                             const OptionalTensor& beta, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                             const Tensor&, const OptionalTensor&, const OptionalTensor&, double, at::IntArrayRef, string_view) {
  const RecurrenceInputs in{q, k, v, log_alpha, beta, initial_state, cu_seqlens};
  return results(empty_gradients(in, check_recurrence(recurrence_of(text(op)), in)));
}

class RecurrenceFunction : public torch::autograd::Function<RecurrenceFunction> {
 public:
  static TensorVector forward(torch::autograd::AutogradContext* ctx, const std::string& name, const Tensor& q, const Tensor& k,
                              const Tensor& v, const OptionalTensor& log_alpha, const OptionalTensor& beta,
                              const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, double scale,
                              std::vector<int64_t> size, const std::string& backend) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_recurrence_forward", "").typed<decltype(forward_kernel)>();
    const auto [o, final_state, saved] = op.call(name, q, k, v, log_alpha, beta, initial_state, cu_seqlens, scale, size, backend);
    const auto kept = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
    ctx->save_for_backward({q, k, v, kept(log_alpha), kept(beta), kept(initial_state), kept(cu_seqlens), saved});
    ctx->saved_data["op"] = name;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["size"] = size;
    ctx->saved_data["backend"] = backend;
    ctx->set_materialize_grads(false);
    return {o, final_state};
  }

  static TensorVector backward(torch::autograd::AutogradContext* ctx, TensorVector grads) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_recurrence_backward", "").typed<decltype(backward_kernel)>();
    const TensorVector kept = ctx->get_saved_variables();
    const auto optional = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
    const auto [q, k, v, log_alpha, beta, initial] =
        op.call(ctx->saved_data["op"].toStringRef(), kept[0], kept[1], kept[2], optional(kept[3]), optional(kept[4]), optional(kept[5]),
                optional(kept[6]), kept[7], optional(grads[0]), optional(grads[1]), ctx->saved_data["scale"].toDouble(),
                ctx->saved_data["size"].toIntVector(), ctx->saved_data["backend"].toStringRef());
    const auto if_given = [&](size_t i, const Tensor& x) { return kept[i].defined() ? x : Tensor(); };
    return {Tensor(), q, k, v, if_given(3, log_alpha), if_given(4, beta), if_given(5, initial), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// Public ops by what they take beside q, k and v: nothing, gates, beta, or both.
using Result = std::tuple<Tensor, Tensor>;

RecurrenceOptions options_of(std::optional<double> scale, int64_t chunk, int64_t segment_chunks, string_view backend) {
  return {parse_backend(text(backend)), scale, chunk, segment_chunks};
}

Result result_of(const RecurrenceOutput& out) { return {out.o, out.final_state}; }

template <auto kOp, class Inputs>
Result bare(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
            std::optional<double> scale, int64_t chunk, int64_t segment_chunks, string_view backend) {
  return result_of(kOp(Inputs{q, k, v, initial_state, cu_seqlens}, options_of(scale, chunk, segment_chunks, backend)));
}

template <auto kOp, class Inputs>
Result with_one(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& more, const OptionalTensor& initial_state,
                const OptionalTensor& cu_seqlens, std::optional<double> scale, int64_t chunk, int64_t segment_chunks, string_view backend) {
  return result_of(kOp(Inputs{q, k, v, more, initial_state, cu_seqlens}, options_of(scale, chunk, segment_chunks, backend)));
}

template <auto kOp, class Inputs>
Result with_two(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, const Tensor& log_alpha,
                const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, std::optional<double> scale, int64_t chunk,
                int64_t segment_chunks, string_view backend) {
  return result_of(kOp(Inputs{q, k, v, beta, log_alpha, initial_state, cu_seqlens}, options_of(scale, chunk, segment_chunks, backend)));
}

template <auto kStep, class Inputs>
Tensor step_bare(const Tensor& q, const Tensor& k, const Tensor& v, Tensor state, std::optional<double> scale) {
  return kStep(Inputs{q, k, v}, state, RecurrenceOptions{.scale = scale});
}

template <auto kStep, class Inputs>
Tensor step_with_one(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& more, Tensor state, std::optional<double> scale) {
  return kStep(Inputs{q, k, v, more}, state, RecurrenceOptions{.scale = scale});
}

template <auto kStep, class Inputs>
Tensor step_with_two(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, const Tensor& log_alpha, Tensor state,
                     std::optional<double> scale) {
  return kStep(Inputs{q, k, v, beta, log_alpha}, state, RecurrenceOptions{.scale = scale});
}

// "Tensor beta, Tensor log_alpha, " and the like stand in `more`.
void define(torch::Library& library, const std::string& op, const std::string& more) {
  library.def((op + "(Tensor q, Tensor k, Tensor v, " + more +
               "*, Tensor? initial_state=None, Tensor? cu_seqlens=None, float? scale=None, int chunk=0, int segment_chunks=0, "
               "str backend='auto') -> (Tensor, Tensor)")
                  .c_str());
  library.def((op + "_step(Tensor q, Tensor k, Tensor v, " + more + "Tensor(a!) state, *, float? scale=None) -> Tensor").c_str());
}

void implement_steps(torch::Library& library) {
  library.impl("la_step", step_bare<la_step, LaStepInputs>);
  library.impl("fixed_scalar_gated_la_step", step_with_one<fixed_scalar_gated_la_step, FixedScalarGatedLaStepInputs>);
  library.impl("scalar_gated_la_step", step_with_one<scalar_gated_la_step, ScalarGatedLaStepInputs>);
  library.impl("row_gated_la_step", step_with_one<row_gated_la_step, RowGatedLaStepInputs>);
  library.impl("column_gated_la_step", step_with_one<column_gated_la_step, ColumnGatedLaStepInputs>);
  library.impl("delta_rule_step", step_with_one<delta_rule_step, DeltaRuleStepInputs>);
  library.impl("scalar_gated_delta_rule_step", step_with_two<scalar_gated_delta_rule_step, ScalarGatedDeltaRuleStepInputs>);
  library.impl("row_gated_delta_rule_step", step_with_two<row_gated_delta_rule_step, RowGatedDeltaRuleStepInputs>);
}

}  // namespace

RecurrenceOutput run_recurrence(const Recurrence& r, RecurrenceInputs in, const RecurrenceOptions& options) {
  spread_fixed_gate(r, in, 4);
  const RecurrenceSizes s = check_recurrence(r, in);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(s.K)));
  check::scale(r.op, scale);
  const Backend backend = choose_backend(
      r.op, options.backend,
      {{Backend::kSm90, std::string("this build has no sm90 kernels of ") + r.op}, {Backend::kPortable, ""}, {Backend::kReference, ""}});
  const SegmentSize size = segment_size(r.op, options.chunk, options.segment_chunks, s.H, in.q.device());
  const TensorVector out =
      RecurrenceFunction::apply(std::string(r.op), in.q, in.k, in.v, in.log_alpha, in.beta, in.initial_state, in.cu_seqlens, scale,
                                std::vector<int64_t>{size.chunk, size.chunks, size.lanes}, std::string(backend_name(backend)));
  return {out[0], out[1], backend};
}

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  define(library, "la", "");
  define(library, "fixed_scalar_gated_la", "Tensor log_gamma, ");
  define(library, "scalar_gated_la", "Tensor log_alpha, ");
  define(library, "row_gated_la", "Tensor log_alpha, ");
  define(library, "column_gated_la", "Tensor log_alpha, ");
  define(library, "delta_rule", "Tensor beta, ");
  define(library, "scalar_gated_delta_rule", "Tensor beta, Tensor log_alpha, ");
  define(library, "row_gated_delta_rule", "Tensor beta, Tensor log_alpha, ");
  library.def(
      "_recurrence_forward(str op, Tensor q, Tensor k, Tensor v, Tensor? log_alpha, Tensor? beta, Tensor? initial_state, Tensor? "
      "cu_seqlens, "
      "float scale, int[] size, str backend) -> (Tensor, Tensor, Tensor)");
  library.def(
      "_recurrence_backward(str op, Tensor q, Tensor k, Tensor v, Tensor? log_alpha, Tensor? beta, Tensor? initial_state, Tensor? "
      "cu_seqlens, "
      "Tensor saved, Tensor? grad_o, Tensor? grad_final, float scale, int[] size, str backend) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(cyfa, CompositeImplicitAutograd, library) {
  library.impl("la", bare<la, LaInputs>);
  library.impl("fixed_scalar_gated_la", with_one<fixed_scalar_gated_la, FixedScalarGatedLaInputs>);
  library.impl("scalar_gated_la", with_one<scalar_gated_la, ScalarGatedLaInputs>);
  library.impl("row_gated_la", with_one<row_gated_la, RowGatedLaInputs>);
  library.impl("column_gated_la", with_one<column_gated_la, ColumnGatedLaInputs>);
  library.impl("delta_rule", with_one<delta_rule, DeltaRuleInputs>);
  library.impl("scalar_gated_delta_rule", with_two<scalar_gated_delta_rule, ScalarGatedDeltaRuleInputs>);
  library.impl("row_gated_delta_rule", with_two<row_gated_delta_rule, RowGatedDeltaRuleInputs>);
}

TORCH_LIBRARY_IMPL(cyfa, CPU, library) {
  library.impl("_recurrence_forward", forward_kernel);
  library.impl("_recurrence_backward", backward_kernel);
  implement_steps(library);
}

TORCH_LIBRARY_IMPL(cyfa, CUDA, library) {
  library.impl("_recurrence_forward", forward_kernel);
  library.impl("_recurrence_backward", backward_kernel);
  implement_steps(library);
}

TORCH_LIBRARY_IMPL(cyfa, Meta, library) {
  library.impl("_recurrence_forward", forward_meta);
  library.impl("_recurrence_backward", backward_meta);
  implement_steps(library);
}

TORCH_LIBRARY_IMPL(cyfa, Autograd, library) {
  library.impl("_recurrence_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("_recurrence_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace cyfa::ops
