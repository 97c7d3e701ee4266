// scalar_gated_la: checks, the portable walk over segments (cyfa/ops/gated_pass.h), the reference, autograd, registration.
#include "cyfa/ops/scalar_gated_la.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>

#include "cyfa/kernels/scalar_gated_la/reference.h"
#include "cyfa/ops/check.h"
#include "cyfa/ops/gated_pass.h"
#include "cyfa/ops/sequences.h"

namespace cyfa::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using TensorVector = std::vector<Tensor>;
namespace ref = scalar_gated_la::reference;

constexpr const char* kOp = "scalar_gated_la";

struct Sizes {
  int64_t B, T, N, H, K, V;
  bool packed;
  at::ScalarType compute;
};

Sizes check_all(const ScalarGatedLaInputs& in) {
  check::shape(kOp, "q", in.q, {{"B", -1}, {"T", -1}, {"H", -1}, {"K", -1}});
  Sizes s{};
  s.B = in.q.size(0);
  s.T = in.q.size(1);
  s.H = in.q.size(2);
  s.K = in.q.size(3);
  check::shape(kOp, "k", in.k, {{"B", s.B}, {"T", s.T}, {"H", s.H}, {"K", s.K}});
  check::shape(kOp, "v", in.v, {{"B", s.B}, {"T", s.T}, {"H", s.H}, {"V", -1}});
  s.V = in.v.size(3);
  check::widths(kOp, s.H, s.K, s.V);
  check::shape(kOp, "log_alpha", in.log_alpha, {{"B", s.B}, {"T", s.T}, {"H", s.H}});
  check::floating(kOp, "q", in.q);
  check::floating(kOp, "log_alpha", in.log_alpha);
  check::same_dtype(kOp, "k", in.k, "q", in.q.scalar_type());
  check::same_dtype(kOp, "v", in.v, "q", in.q.scalar_type());
  for (const auto& [name, x] : {std::pair<const char*, const Tensor&>{"k", in.k}, {"v", in.v}, {"log_alpha", in.log_alpha}}) {
    check::same_device(kOp, name, x, "q", in.q.device());
  }
  s.packed = in.cu_seqlens.has_value();
  if (s.packed) check::borders(kOp, *in.cu_seqlens, s.B, in.q.device());
  s.N = s.packed ? in.cu_seqlens->numel() - 1 : s.B;
  s.compute = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (in.initial_state) {
    check::shape(kOp, "initial_state", *in.initial_state, {{"N", s.N}, {"H", s.H}, {"K", s.K}, {"V", s.V}});
    check::same_dtype(kOp, "initial_state", *in.initial_state, "the compute type of q", s.compute);
    check::same_device(kOp, "initial_state", *in.initial_state, "q", in.q.device());
  }
  return s;
}

std::vector<int64_t> offsets_of(const ScalarGatedLaInputs& in, const Sizes& s) {
  return s.packed ? check::sequence_offsets(kOp, *in.cu_seqlens, s.T) : batch_offsets(s.B, s.T);
}

struct Forward {
  Tensor o, final_state, saved;  // saved [rows, H, K, V]: states at segment starts
};

struct Gradients {
  Tensor q, k, v, log_alpha, initial_state;
};

Forward empty_forward(const ScalarGatedLaInputs& in, const Sizes& s, const SegmentSize& size, Backend backend) {
  const auto compute = in.q.options().dtype(s.compute);
  const int64_t rows = backend == Backend::kPortable ? saved_state_rows(s.packed, s.B, s.T, size) : 0;
  return {at::empty({s.B, s.T, s.H, s.V}, in.v.options()), at::empty({s.N, s.H, s.K, s.V}, compute), at::empty({rows, s.H, s.K, s.V}, compute)};
}

Gradients empty_gradients(const ScalarGatedLaInputs& in, const Sizes& s) {
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  return {like(in.q), like(in.k), like(in.v), like(in.log_alpha), at::empty({s.N, s.H, s.K, s.V}, in.q.options().dtype(s.compute))};
}

Tensor flat(const Tensor& x) { return x.flatten(0, 1); }

Tensor some_heads(const Tensor& x, const WalkTask& task) { return x.narrow(1, task.head, task.heads); }

Forward portable_forward(const ScalarGatedLaInputs& in, const Sizes& s, const SegmentSize& size, double scale) {
  const std::vector<WalkTask> tasks = plan_tasks(plan_segments(offsets_of(in, s), size), s.H, in.q.device());
  Forward out = empty_forward(in, s, size, Backend::kPortable);
  if (in.initial_state) {
    out.final_state.copy_(*in.initial_state);
  } else {
    out.final_state.zero_();
  }
  run_tasks(tasks, [&](size_t i) {
    const auto mine = [&](const Tensor& x) { return some_heads(x, tasks[i]); };
    for (const Segment& segment : tasks[i].segments) {
      const SegmentCopy copy(segment, tasks[i].heads, in.q.device());
      const auto gathered = [&](const Tensor& x) { return copy.gather(mine(flat(x)), s.compute); };
      LaneStates state(mine(out.final_state), segment);
      if (segment.slot >= 0) LaneStates::save(mine(out.saved), segment, state);
      const ChunkDecay decay(copy.gather_gate(mine(flat(in.log_alpha)), at::kDouble), s.compute);
      copy.scatter(gated_pass_forward(gathered(in.q) * scale, gathered(in.k), gathered(in.v), decay, state.get(), {}), mine(flat(out.o)));
      state.put();
    }
  });
  return out;
}

Gradients portable_backward(const ScalarGatedLaInputs& in, const Sizes& s, const SegmentSize& size, double scale, const Tensor& saved,
                            const Tensor& grad_o, const Tensor& grad_final) {
  const std::vector<WalkTask> tasks = plan_tasks(plan_segments(offsets_of(in, s), size), s.H, in.q.device());
  const auto compute = in.q.options().dtype(s.compute);
  Gradients out = empty_gradients(in, s);
  if (grad_final.defined()) {
    out.initial_state.copy_(grad_final);
  } else {
    out.initial_state.zero_();
  }
  const Tensor upstream = grad_o.defined() ? grad_o : at::zeros({1}, compute).expand({s.B, s.T, s.H, s.V});
  run_tasks(tasks, [&](size_t i) {
    const auto mine = [&](const Tensor& x) { return some_heads(x, tasks[i]); };
    for (auto segment = tasks[i].segments.rbegin(); segment != tasks[i].segments.rend(); ++segment) {
      const SegmentCopy copy(*segment, tasks[i].heads, in.q.device());
      const auto gathered = [&](const Tensor& x) { return copy.gather(mine(flat(x)), s.compute); };
      const Tensor q = gathered(in.q) * scale;
      const Tensor k = gathered(in.k);
      const Tensor v = gathered(in.v);
      const ChunkDecay decay(copy.gather_gate(mine(flat(in.log_alpha)), at::kDouble), s.compute);
      Tensor state = at::zeros({k.size(0), s.K, s.V}, compute);
      if (segment->slot >= 0) {
        state = LaneStates::saved(mine(saved), *segment);
      } else if (in.initial_state) {
        state.copy_(LaneStates(mine(*in.initial_state), *segment).get());
      }
      const Tensor states = at::empty({k.size(0), k.size(1), s.K, s.V}, compute);
      gated_pass_states(k, v, decay, state, states);
      LaneStates running(mine(out.initial_state), *segment);
      DecayGradient gates;
      const GatedPassGradient grad = gated_pass_backward(q, k, v, decay, states, gathered(upstream), running.get(), gates);
      running.put();
      copy.scatter(grad.q.mul_(scale), mine(flat(out.q)));
      copy.scatter(grad.k, mine(flat(out.k)));
      copy.scatter(grad.v, mine(flat(out.v)));
      copy.scatter_gate(gates.log_alpha(), mine(flat(out.log_alpha)));
    }
  });
  return out;
}

// The inputs in double on the host, and the pointers that the reference takes.
struct HostInputs {
  Tensor q, k, v, log_alpha, initial;
  std::vector<int64_t> offsets;
  ref::Inputs raw;

  static Tensor host(const Tensor& x) { return x.detach().to(at::kCPU, at::kDouble).contiguous(); }

  HostInputs(const ScalarGatedLaInputs& in, const Sizes& s, double scale)
      : q(host(in.q)), k(host(in.k)), v(host(in.v)), log_alpha(host(in.log_alpha)), offsets(offsets_of(in, s)) {
    if (in.initial_state) initial = host(*in.initial_state);
    raw = {s.N, s.B * s.T, s.H, s.K, s.V, offsets.data(), q.const_data_ptr<double>(), k.const_data_ptr<double>(), v.const_data_ptr<double>(),
           log_alpha.const_data_ptr<double>(), initial.defined() ? initial.const_data_ptr<double>() : nullptr, scale};
  }
};

void fill(const Tensor& to, const std::vector<double>& from) { to.copy_(at::tensor(from, at::kDouble).view(to.sizes())); }

Forward reference_forward(const ScalarGatedLaInputs& in, const Sizes& s, double scale) {
  Forward out = empty_forward(in, s, {}, Backend::kReference);
  const ref::Outputs result = ref::forward(HostInputs(in, s, scale).raw);
  fill(out.o, result.o);
  fill(out.final_state, result.final_state);
  return out;
}

Gradients reference_backward(const ScalarGatedLaInputs& in, const Sizes& s, double scale, const Tensor& grad_o, const Tensor& grad_final) {
  Gradients out = empty_gradients(in, s);
  const Tensor upstream = grad_o.defined() ? HostInputs::host(grad_o) : Tensor();
  const Tensor last = grad_final.defined() ? HostInputs::host(grad_final) : Tensor();
  const ref::InputGradients result = ref::backward(HostInputs(in, s, scale).raw, upstream.defined() ? upstream.const_data_ptr<double>() : nullptr,
                                                   last.defined() ? last.const_data_ptr<double>() : nullptr);
  fill(out.q, result.q);
  fill(out.k, result.k);
  fill(out.v, result.v);
  fill(out.log_alpha, result.log_alpha);
  fill(out.initial_state, result.initial_state);
  return out;
}

using ForwardResult = std::tuple<Tensor, Tensor, Tensor>;
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Backend parse(c10::string_view name) { return parse_backend(std::string_view(name.data(), name.size())); }
SegmentSize size_of(at::IntArrayRef x) { return {x[0], x[1], x[2]}; }

ForwardResult forward_kernel(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_alpha, const OptionalTensor& initial_state,
                             const OptionalTensor& cu_seqlens, double scale, at::IntArrayRef size, c10::string_view backend) {
  const ScalarGatedLaInputs in{q, k, v, log_alpha, initial_state, cu_seqlens};
  const Sizes s = check_all(in);
  check::log_alpha(kOp, log_alpha);
  const Forward out = parse(backend) == Backend::kReference ? reference_forward(in, s, scale) : portable_forward(in, s, size_of(size), scale);
  return {out.o, out.final_state, out.saved};
}

ForwardResult forward_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_alpha, const OptionalTensor& initial_state,
                           const OptionalTensor& cu_seqlens, double, at::IntArrayRef size, c10::string_view backend) {
  const ScalarGatedLaInputs in{q, k, v, log_alpha, initial_state, cu_seqlens};
  const Forward out = empty_forward(in, check_all(in), size_of(size), parse(backend));
  return {out.o, out.final_state, out.saved};
}

BackwardResult backward_kernel(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_alpha, const OptionalTensor& initial_state,
                               const OptionalTensor& cu_seqlens, const Tensor& saved, const OptionalTensor& grad_o,
                               const OptionalTensor& grad_final, double scale, at::IntArrayRef size, c10::string_view backend) {
  const ScalarGatedLaInputs in{q, k, v, log_alpha, initial_state, cu_seqlens};
  const Sizes s = check_all(in);
  const Tensor upstream = grad_o.value_or(Tensor());
  const Tensor last = grad_final.value_or(Tensor());
  const Gradients g = parse(backend) == Backend::kReference ? reference_backward(in, s, scale, upstream, last)
                                                            : portable_backward(in, s, size_of(size), scale, saved, upstream, last);
  return {g.q, g.k, g.v, g.log_alpha, g.initial_state};
}

BackwardResult backward_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_alpha, const OptionalTensor& initial_state,
                             const OptionalTensor& cu_seqlens, const Tensor&, const OptionalTensor&, const OptionalTensor&, double, at::IntArrayRef,
                             c10::string_view) {
  const ScalarGatedLaInputs in{q, k, v, log_alpha, initial_state, cu_seqlens};
  const Gradients g = empty_gradients(in, check_all(in));
  return {g.q, g.k, g.v, g.log_alpha, g.initial_state};
}

class ScalarGatedLaFunction : public torch::autograd::Function<ScalarGatedLaFunction> {
 public:
  static TensorVector forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_alpha,
                              const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, double scale, std::vector<int64_t> size,
                              const std::string& backend) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_scalar_gated_la_forward", "").typed<decltype(forward_kernel)>();
    const auto [o, final_state, saved] = op.call(q, k, v, log_alpha, initial_state, cu_seqlens, scale, size, backend);
    ctx->save_for_backward({q, k, v, log_alpha, initial_state.value_or(Tensor()), cu_seqlens.value_or(Tensor()), saved});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["size"] = size;
    ctx->saved_data["backend"] = backend;
    ctx->set_materialize_grads(false);
    return {o, final_state};
  }

  static TensorVector backward(torch::autograd::AutogradContext* ctx, TensorVector grads) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_scalar_gated_la_backward", "").typed<decltype(backward_kernel)>();
    const TensorVector kept = ctx->get_saved_variables();
    const auto optional = [](const Tensor& x) { return x.defined() ? OptionalTensor(x) : std::nullopt; };
    const auto [q, k, v, log_alpha, initial] =
        op.call(kept[0], kept[1], kept[2], kept[3], optional(kept[4]), optional(kept[5]), kept[6], optional(grads[0]), optional(grads[1]),
                ctx->saved_data["scale"].toDouble(), ctx->saved_data["size"].toIntVector(), ctx->saved_data["backend"].toStringRef());
    return {q, k, v, log_alpha, kept[4].defined() ? initial : Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> entry(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_alpha, const OptionalTensor& initial_state,
                                 const OptionalTensor& cu_seqlens, std::optional<double> scale, int64_t chunk, int64_t segment_chunks,
                                 c10::string_view backend) {
  const ScalarGatedLaOutput out = scalar_gated_la({q, k, v, log_alpha, initial_state, cu_seqlens}, {parse(backend), scale, chunk, segment_chunks});
  return {out.o, out.final_state};
}

}  // namespace

ScalarGatedLaOutput scalar_gated_la(const ScalarGatedLaInputs& in, const ScalarGatedLaOptions& options) {
  const Sizes s = check_all(in);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(s.K)));
  check::scale(kOp, scale);
  const Backend backend = choose_backend(
      kOp, options.backend, {{Backend::kSm90, "this build has no sm90 kernels of scalar_gated_la"}, {Backend::kPortable, ""}, {Backend::kReference, ""}});
  const SegmentSize size = segment_size(kOp, options.chunk, options.segment_chunks, s.H, in.q.device());
  const TensorVector out = ScalarGatedLaFunction::apply(in.q, in.k, in.v, in.log_alpha, in.initial_state, in.cu_seqlens, scale,
                                                        std::vector<int64_t>{size.chunk, size.chunks, size.lanes}, std::string(backend_name(backend)));
  return {out[0], out[1], backend};
}

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  library.def(
      "scalar_gated_la(Tensor q, Tensor k, Tensor v, Tensor log_alpha, *, Tensor? initial_state=None, Tensor? cu_seqlens=None, float? scale=None, "
      "int chunk=0, int segment_chunks=0, str backend='auto') -> (Tensor, Tensor)");
  library.def(
      "_scalar_gated_la_forward(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor? initial_state, Tensor? cu_seqlens, float scale, int[] size, "
      "str backend) -> (Tensor, Tensor, Tensor)");
  library.def(
      "_scalar_gated_la_backward(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor? initial_state, Tensor? cu_seqlens, Tensor saved, "
      "Tensor? grad_o, Tensor? grad_final, float scale, int[] size, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(cyfa, CompositeImplicitAutograd, library) { library.impl("scalar_gated_la", entry); }

TORCH_LIBRARY_IMPL(cyfa, CPU, library) {
  library.impl("_scalar_gated_la_forward", forward_kernel);
  library.impl("_scalar_gated_la_backward", backward_kernel);
}

TORCH_LIBRARY_IMPL(cyfa, CUDA, library) {
  library.impl("_scalar_gated_la_forward", forward_kernel);
  library.impl("_scalar_gated_la_backward", backward_kernel);
}

TORCH_LIBRARY_IMPL(cyfa, Meta, library) {
  library.impl("_scalar_gated_la_forward", forward_meta);
  library.impl("_scalar_gated_la_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(cyfa, Autograd, library) {
  library.impl("_scalar_gated_la_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("_scalar_gated_la_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace cyfa::ops
