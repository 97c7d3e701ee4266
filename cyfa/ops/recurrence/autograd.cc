// The recurrences in torch's dispatcher, all registered by loops over the table (cyfa/ops/recurrence/table.h):
//
//   cyfa::<op>, cyfa::<op>_step   public; boxed kernels that read their arguments in the order of the op's schema
//   cyfa::_recurrence_forward     one kernel for all ops and backends: o, the final state and the tensors that the backend saves
//   cyfa::_recurrence_backward    likewise: the gradients, which are not differentiable themselves
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/recurrence/dispatch.h"

namespace cyfa::ops {
namespace {

using at::Tensor;
using c10::string_view;
using OptionalTensor = std::optional<Tensor>;
using TensorVector = std::vector<Tensor>;
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

std::string_view text(string_view x) { return {x.data(), x.size()}; }

// The settings of a call, which may come from anywhere.
RecurrenceSettings settings_of(const Recurrence& r, double scale, at::IntArrayRef size) {
  check::scale(r.op, scale);
  return {scale, segment_size(r.op, size)};
}

const RecurrenceBackend& backend_of(const Recurrence& r, string_view name) {
  const Backend id = parse_backend(text(name));
  const auto found = std::find_if(r.backends.begin(), r.backends.end(), [&](const RecurrenceBackend& b) { return b.id == id; });
  if (found == r.backends.end()) check::fail(r.op, "has no backend " + std::string(text(name)));
  return *found;
}

const RecurrenceBackend& accepting_backend(const Recurrence& r, string_view name, const RecurrenceInputs& in) {
  const RecurrenceBackend& backend = backend_of(r, name);
  choose_backend(r.op, backend.id, {{backend.id, backend.refusal(r, in)}});
  return backend;
}

TensorVector pack(const RecurrenceForward& out) {
  TensorVector all = {out.o, out.final_state};
  all.insert(all.end(), out.saved.begin(), out.saved.end());
  return all;
}

TensorVector forward_kernel(string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_alpha,
                            const OptionalTensor& beta, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, double scale,
                            at::IntArrayRef size, string_view backend) {
  const Recurrence& r = recurrence_of(text(op));
  const RecurrenceInputs in{q, k, v, log_alpha, beta, initial_state, cu_seqlens};
  const WithoutAutocast plain_types;
  check_recurrence(r, in, /*shared_keys=*/true);
  if (log_alpha) check::log_alpha(r.op, *log_alpha);
  return pack(accepting_backend(r, backend, in).forward(r, in, settings_of(r, scale, size)));
}

TensorVector forward_meta(string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_alpha,
                          const OptionalTensor& beta, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, double scale,
                          at::IntArrayRef size, string_view backend) {
  const Recurrence& r = recurrence_of(text(op));
  const RecurrenceInputs in{q, k, v, log_alpha, beta, initial_state, cu_seqlens};
  const RecurrenceSizes s = check_recurrence(r, in, /*shared_keys=*/true);
  return pack(empty_forward(in, s, backend_of(r, backend).empty_saved(in.q.options(), s, settings_of(r, scale, size))));
}

// A schema cannot return an undefined tensor, so the gradient of an absent input is an empty tensor.
BackwardResult results(const RecurrenceGradients& g) {
  const auto some = [&](const Tensor& x) { return x.defined() ? x : at::empty({0}, g.q.options()); };
  return {g.q, g.k, g.v, some(g.log_alpha), some(g.beta), g.initial_state};
}

BackwardResult backward_kernel(string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_alpha,
                               const OptionalTensor& beta, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                               at::TensorList saved, const OptionalTensor& grad_o, const OptionalTensor& grad_final, double scale,
                               at::IntArrayRef size, string_view backend) {
  const Recurrence& r = recurrence_of(text(op));
  const RecurrenceInputs in{q, k, v, log_alpha, beta, initial_state, cu_seqlens};
  const WithoutAutocast plain_types;
  const RecurrenceSizes s = check_recurrence(r, in, /*shared_keys=*/true);
  const RecurrenceSettings settings = settings_of(r, scale, size);
  const RecurrenceBackend& by = accepting_backend(r, backend, in);
  const auto nowhere = q.options().device(at::kMeta);
  check::saved(r.op, saved, by.empty_saved(nowhere, s, settings), q.device());
  const TensorVector grads = {grad_o.value_or(Tensor()), grad_final.value_or(Tensor())};
  check::gradients(r.op, grads, {at::empty({s.B, s.T, s.H, s.V}, nowhere), at::empty({s.N, s.H, s.K, s.V}, nowhere.dtype(s.compute))},
                   q.device());
  return results(by.backward(r, in, settings, saved, grads[0], grads[1]));
}

BackwardResult backward_meta(string_view op, const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& log_alpha,
                             const OptionalTensor& beta, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                             at::TensorList, const OptionalTensor&, const OptionalTensor&, double, at::IntArrayRef, string_view) {
  const RecurrenceInputs in{q, k, v, log_alpha, beta, initial_state, cu_seqlens};
  return results(empty_gradients(in, check_recurrence(recurrence_of(text(op)), in, /*shared_keys=*/true)));
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
    TensorVector out = op.call(name, q, k, v, log_alpha, beta, initial_state, cu_seqlens, scale, size, backend);
    const auto kept = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
    TensorVector keep = {q, k, v, kept(log_alpha), kept(beta), kept(initial_state), kept(cu_seqlens)};
    keep.insert(keep.end(), out.begin() + 2, out.end());
    ctx->save_for_backward(std::move(keep));
    ctx->saved_data["op"] = name;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["size"] = size;
    ctx->saved_data["backend"] = backend;
    ctx->set_materialize_grads(false);
    out.resize(2);
    return out;
  }

  static TensorVector backward(torch::autograd::AutogradContext* ctx, TensorVector grads) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_recurrence_backward", "").typed<decltype(backward_kernel)>();
    const TensorVector kept = ctx->get_saved_variables();
    const auto optional = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
    const auto [q, k, v, log_alpha, beta, initial] =
        op.call(ctx->saved_data["op"].toStringRef(), kept[0], kept[1], kept[2], optional(kept[3]), optional(kept[4]), optional(kept[5]),
                optional(kept[6]), at::TensorList(kept).slice(7), optional(grads[0]), optional(grads[1]),
                ctx->saved_data["scale"].toDouble(), ctx->saved_data["size"].toIntVector(), ctx->saved_data["backend"].toStringRef());
    const auto if_given = [&](size_t i, const Tensor& x) { return kept[i].defined() ? x : Tensor(); };
    return {Tensor(), q, k, v, if_given(3, log_alpha), if_given(4, beta), if_given(5, initial), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// The public schemas. Parts such as "Tensor beta, Tensor log_alpha, " come from the op's arguments.
std::string own_arguments(const Recurrence& r) {
  std::string all;
  for (const RecurrenceArgument& a : r.arguments) all += "Tensor " + std::string(a.name) + ", ";
  return all;
}

std::string schema(const Recurrence& r) {
  return std::string(r.op) + "(Tensor q, Tensor k, Tensor v, " + own_arguments(r) +
         "*, Tensor? initial_state=None, Tensor? cu_seqlens=None, float? scale=None, int chunk=0, int segment_chunks=0, "
         "str backend='auto') -> (Tensor, Tensor)";
}

std::string step_schema(const Recurrence& r) {
  return std::string(r.op) + "_step(Tensor q, Tensor k, Tensor v, " + own_arguments(r) +
         "Tensor(a!) state, *, float? scale=None) -> Tensor";
}

// Reads the arguments of a boxed call in order.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack) : values_(torch::jit::pop(stack, op.schema().arguments().size())) {}

  c10::IValue next() { return values_[place_++]; }

  // q, k, v and the op's own arguments.
  RecurrenceInputs inputs(const Recurrence& r) {
    RecurrenceInputs in;
    in.q = next().toTensor();
    in.k = next().toTensor();
    in.v = next().toTensor();
    for (const RecurrenceArgument& a : r.arguments) in.*a.member = next().toTensor();
    return in;
  }

 private:
  std::vector<c10::IValue> values_;
  size_t place_ = 0;
};

class BoxedOp final : public c10::OperatorKernel {
 public:
  explicit BoxedOp(const Recurrence& r) : r_(r) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Arguments arguments(op, *stack);
    RecurrenceInputs in = arguments.inputs(r_);
    in.initial_state = arguments.next().toOptional<Tensor>();
    in.cu_seqlens = arguments.next().toOptional<Tensor>();
    RecurrenceOptions options;
    options.scale = arguments.next().toOptional<double>();
    options.chunk = arguments.next().toInt();
    options.segment_chunks = arguments.next().toInt();
    options.backend = parse_backend(arguments.next().toStringRef());
    const RecurrenceOutput out = run_recurrence(r_, in, options);
    torch::jit::push(*stack, out.o, out.final_state);
  }

 private:
  const Recurrence& r_;
};

class BoxedStep final : public c10::OperatorKernel {
 public:
  explicit BoxedStep(const Recurrence& r) : r_(r) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Arguments arguments(op, *stack);
    const RecurrenceInputs in = arguments.inputs(r_);
    const Tensor state = arguments.next().toTensor();
    RecurrenceOptions options;
    options.scale = arguments.next().toOptional<double>();
    torch::jit::push(*stack, step_recurrence(r_, in, state, options));
  }

 private:
  const Recurrence& r_;
};

void implement(torch::Library& library, decltype(forward_kernel)& forward, decltype(backward_kernel)& backward) {
  library.impl("_recurrence_forward", forward);
  library.impl("_recurrence_backward", backward);
  for (const Recurrence& r : recurrences()) {
    library.impl((std::string(r.op) + "_step").c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedStep>(r)));
  }
}

}  // namespace

RecurrenceOutput dispatch_recurrence(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings, Backend backend) {
  const SegmentSize& size = settings.size;
  const TensorVector out =
      RecurrenceFunction::apply(std::string(r.op), in.q, in.k, in.v, in.log_alpha, in.beta, in.initial_state, in.cu_seqlens, settings.scale,
                                std::vector<int64_t>{size.chunk, size.chunks, size.lanes}, std::string(backend_name(backend)));
  return {out[0], out[1], backend};
}

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  for (const Recurrence& r : recurrences()) {
    library.def(schema(r).c_str());
    library.def(step_schema(r).c_str());
  }
  library.def(
      "_recurrence_forward(str op, Tensor q, Tensor k, Tensor v, Tensor? log_alpha, Tensor? beta, Tensor? initial_state, "
      "Tensor? cu_seqlens, float scale, int[] size, str backend) -> Tensor[]");
  library.def(
      "_recurrence_backward(str op, Tensor q, Tensor k, Tensor v, Tensor? log_alpha, Tensor? beta, Tensor? initial_state, "
      "Tensor? cu_seqlens, Tensor[] saved, Tensor? grad_o, Tensor? grad_final, float scale, int[] size, str backend) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

// Composite kernels: autograd tracks the Function inside.
TORCH_LIBRARY_IMPL(cyfa, CompositeImplicitAutograd, library) {
  for (const Recurrence& r : recurrences()) {
    library.impl(r.op, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedOp>(r)));
  }
}

TORCH_LIBRARY_IMPL(cyfa, CPU, library) { implement(library, forward_kernel, backward_kernel); }
TORCH_LIBRARY_IMPL(cyfa, CUDA, library) { implement(library, forward_kernel, backward_kernel); }
TORCH_LIBRARY_IMPL(cyfa, Meta, library) { implement(library, forward_meta, backward_meta); }

TORCH_LIBRARY_IMPL(cyfa, Autograd, library) {
  library.impl("_recurrence_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("_recurrence_backward", torch::autograd::autogradNotImplementedFallback());
  for (const Recurrence& r : recurrences()) {
    library.impl((std::string(r.op) + "_step").c_str(), torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace cyfa::ops
