// Registration of cyclic_flow with torch's dispatcher: schemas, CPU, CUDA and Meta kernels, autograd.
//
//   cyfa::cyclic_flow            differentiable; returns o and the final state (k, v, clock), without elements where it is not wanted
//   cyfa::_cyclic_flow_forward   o, final state, and what the backend saves for its backward
//   cyfa::_cyclic_flow_backward  the hand-derived backward; itself not differentiable
//
// The last two take the inputs that are present as one list, and `places`, the index of each in the order of pack(). So the argument list
// is written down once, and autograd sees all of its tensors.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/common/once_differentiable.h"
#include "cyfa/ops/cyclic_flow/impl.h"

namespace cyfa::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalList = c10::List<OptionalTensor>;
using TensorVector = std::vector<Tensor>;

constexpr size_t kInputs = 13;

// All inputs in one list; absent ones are undefined.
TensorVector pack(const CyclicFlowInputs& in) {
  const CyclicFlowState state = in.initial_state.value_or(CyclicFlowState{});
  return {in.q,
          in.k,
          in.v,
          in.log_alpha,
          in.delta,
          in.beta,
          in.readout,
          in.q_norm_weight.value_or(Tensor()),
          in.k_norm_weight.value_or(Tensor()),
          state.k,
          state.v,
          state.clock,
          in.cu_seqlens.value_or(Tensor())};
}

CyclicFlowInputs unpack(at::TensorList present, at::IntArrayRef places) {
  if (present.size() != places.size()) {
    check::fail(kCyclicFlow, "got " + std::to_string(present.size()) + " inputs and " + std::to_string(places.size()) +
                                 " places, wanted a place for each input");
  }
  TensorVector x(kInputs);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto place = static_cast<size_t>(places[i]);  // a negative one becomes too large
    if (place >= kInputs || x[place].defined())
      check::fail(kCyclicFlow, "places are " + c10::str(places) + ", wanted different numbers from 0 to " + std::to_string(kInputs - 1));
    if (!present[i].defined()) check::fail(kCyclicFlow, "input " + std::to_string(i) + " is missing, wanted a tensor for each place");
    x[place] = present[i];
  }
  const auto optional = [](const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; };
  CyclicFlowInputs in{x[0], x[1], x[2], x[3], x[4], x[5], x[6], optional(x[7]), optional(x[8]), std::nullopt, optional(x[12])};
  if (x[9].defined() || x[10].defined() || x[11].defined()) in.initial_state = CyclicFlowState{x[9], x[10], x[11]};
  return in;
}

// The results of forward in one list; an unwanted final state becomes tensors without elements.
TensorVector pack(CyclicFlowForward out, bool final_state) {
  if (!final_state) {
    for (Tensor* x : {&out.final_state.k, &out.final_state.v, &out.final_state.clock}) *x = at::empty({0}, x->options());
  }
  TensorVector all = {out.o, out.final_state.k, out.final_state.v, out.final_state.clock};
  all.insert(all.end(), out.saved.begin(), out.saved.end());
  return all;
}

// Optional tensors are passed as lists of optionals; internally they are tensors that may be undefined.
OptionalList to_optionals(at::TensorList x) {
  OptionalList list;
  for (const Tensor& t : x) list.push_back(t.defined() ? OptionalTensor(t) : OptionalTensor());
  return list;
}

TensorVector from_optionals(const OptionalList& list) {
  TensorVector x;
  for (const OptionalTensor& t : list) x.push_back(t.value_or(Tensor()));
  return x;
}

// The settings of a call, which may come from anywhere.
CyclicFlowSettings settings_of(double scale, double norm_eps, at::IntArrayRef segment_size, int64_t keep, c10::string_view backend) {
  check::scale(kCyclicFlow, scale);
  check::norm_eps(kCyclicFlow, norm_eps);
  if (keep < static_cast<int64_t>(Keep::kNothing) || keep > static_cast<int64_t>(Keep::kStatesAndScores))
    check::fail(kCyclicFlow, "keep is " + std::to_string(keep) + ", wanted 0, 1 or 2");
  CyclicFlowSettings s;
  s.backend = parse_backend(std::string_view(backend.data(), backend.size()));
  s.scale = scale;
  s.norm_eps = norm_eps;
  s.size = ops::segment_size(kCyclicFlow, segment_size);
  s.keep = static_cast<Keep>(keep);
  return s;
}

// The backend of this name; throws if it does not take the inputs.
const CyclicFlowBackend& accepting_backend(Backend id, const CyclicFlowInputs& in) {
  const CyclicFlowBackend& backend = cyclic_flow_backend(id);
  choose_backend(kCyclicFlow, id, {{id, backend.refusal(in)}});
  return backend;
}

TensorVector forward_kernel(at::TensorList inputs, at::IntArrayRef places, double scale, double norm_eps, at::IntArrayRef segment_size,
                            int64_t keep, bool final_state, c10::string_view backend) {
  const WithoutAutocast plain_types;
  const CyclicFlowInputs in = unpack(inputs, places);
  CyclicFlowSettings settings = settings_of(scale, norm_eps, segment_size, keep, backend);
  settings.final_state = final_state;
  check_cyclic_flow(in);
  check::log_alpha(kCyclicFlow, in.log_alpha);
  return pack(accepting_backend(settings.backend, in).forward(in, settings), final_state);
}

TensorVector forward_meta(at::TensorList inputs, at::IntArrayRef places, double scale, double norm_eps, at::IntArrayRef segment_size,
                          int64_t keep, bool final_state, c10::string_view backend) {
  const CyclicFlowInputs in = unpack(inputs, places);
  const CyclicFlowShape shape = check_cyclic_flow(in);
  const CyclicFlowSettings settings = settings_of(scale, norm_eps, segment_size, keep, backend);
  CyclicFlowForward out = empty_cyclic_flow_forward(in, shape);
  out.saved = cyclic_flow_backend(settings.backend).empty_saved(in.q.options(), shape, settings);
  return pack(std::move(out), final_state);
}

// The gradients in one list. Absent ones become empty tensors, because a schema cannot return an undefined tensor.
TensorVector pack(const CyclicFlowGradients& g) {
  TensorVector x = {g.q,
                    g.k,
                    g.v,
                    g.log_alpha,
                    g.delta,
                    g.beta,
                    g.readout,
                    g.q_norm_weight,
                    g.k_norm_weight,
                    g.initial_state.k,
                    g.initial_state.v,
                    g.initial_state.clock};
  for (Tensor& t : x) {
    if (!t.defined()) t = at::empty({0}, g.q.options());
  }
  return x;
}

TensorVector backward_kernel(at::TensorList inputs, at::IntArrayRef places, at::TensorList saved, const OptionalList& grads, double scale,
                             double norm_eps, at::IntArrayRef segment_size, int64_t keep, c10::string_view backend) {
  const WithoutAutocast plain_types;
  const CyclicFlowInputs in = unpack(inputs, places);
  const CyclicFlowSettings settings = settings_of(scale, norm_eps, segment_size, keep, backend);
  const CyclicFlowShape shape = check_cyclic_flow(in);
  const CyclicFlowBackend& by = accepting_backend(settings.backend, in);
  if (settings.keep == Keep::kNothing) check::fail(kCyclicFlow, "keep is 0, wanted 1 or 2: forward saved nothing for a backward");
  const auto nowhere = in.q.options().device(at::kMeta);
  check::saved(kCyclicFlow, saved, by.empty_saved(nowhere, shape, settings), in.q.device());
  const TensorVector g = from_optionals(grads);
  check::gradients(kCyclicFlow, g,
                   {at::empty({shape.B, shape.T, shape.H, shape.V}, nowhere),
                    at::empty({shape.N, shape.H, shape.K, shape.M}, nowhere.dtype(shape.compute)),
                    at::empty({shape.N, shape.H, shape.M, shape.V}, nowhere.dtype(shape.compute)),
                    at::empty({shape.N, shape.H}, nowhere.dtype(at::kDouble))},
                   in.q.device());
  return pack(by.backward(in, settings, saved, {g[0], {g[1], g[2], g[3]}}));
}

TensorVector backward_meta(at::TensorList inputs, at::IntArrayRef places, at::TensorList, const OptionalList&, double, double,
                           at::IntArrayRef, int64_t, c10::string_view) {
  const CyclicFlowInputs in = unpack(inputs, places);
  check_cyclic_flow(in);
  return pack(empty_cyclic_flow_gradients(in));
}

TensorVector dispatch_forward(at::TensorList inputs, at::IntArrayRef places, const CyclicFlowSettings& s) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_cyclic_flow_forward", "").typed<decltype(forward_kernel)>();
  return op.call(inputs, places, s.scale, s.norm_eps, {s.size.chunk, s.size.chunks, s.size.lanes}, static_cast<int64_t>(s.keep),
                 s.final_state, backend_name(s.backend));
}

TensorVector dispatch_backward(at::TensorList inputs, at::IntArrayRef places, at::TensorList saved, at::TensorList grads,
                               const CyclicFlowSettings& s) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_cyclic_flow_backward", "").typed<decltype(backward_kernel)>();
  return op.call(inputs, places, saved, to_optionals(grads), s.scale, s.norm_eps, {s.size.chunk, s.size.chunks, s.size.lanes},
                 static_cast<int64_t>(s.keep), backend_name(s.backend));
}

struct InputsAgain : torch::CustomClassHolder {
  explicit InputsAgain(std::function<std::array<Tensor, 3>()> f) : get(std::move(f)) {}
  std::function<std::array<Tensor, 3>()> get;
};

class CyclicFlowFunction : public torch::autograd::Function<CyclicFlowFunction> {
 public:
  static TensorVector forward(torch::autograd::AutogradContext* ctx, at::TensorList present, const std::vector<int64_t>& places,
                              const CyclicFlowSettings& settings) {
    const at::AutoDispatchBelowADInplaceOrView below;
    TensorVector all = dispatch_forward(present, places, settings);
    TensorVector keep(present.begin(), present.end());
    if (settings.again) {
      std::fill_n(keep.begin(), 3, Tensor());  // q, k and v
      ctx->saved_data["again"] = c10::IValue::make_capsule(c10::make_intrusive<InputsAgain>(settings.again));
    }
    keep.insert(keep.end(), all.begin() + 4, all.end());
    ctx->save_for_backward(std::move(keep));
    ctx->saved_data["places"] = places;
    ctx->saved_data["scale"] = settings.scale;
    ctx->saved_data["norm_eps"] = settings.norm_eps;
    ctx->saved_data["size"] = std::vector<int64_t>{settings.size.chunk, settings.size.chunks, settings.size.lanes};
    ctx->saved_data["keep"] = static_cast<int64_t>(settings.keep);
    ctx->saved_data["backend"] = std::string(backend_name(settings.backend));
    ctx->set_materialize_grads(false);
    all.resize(4);
    return all;
  }

  static TensorVector backward(torch::autograd::AutogradContext* ctx, TensorVector grads) {
    TensorVector kept = ctx->get_saved_variables();
    if (const auto again = ctx->saved_data.find("again"); again != ctx->saved_data.end()) {
      const at::NoGradGuard no_grad;
      const std::array<Tensor, 3> inputs = c10::static_intrusive_pointer_cast<InputsAgain>(again->second.toCapsule())->get();
      std::copy(inputs.begin(), inputs.end(), kept.begin());
    }
    const std::string backend = ctx->saved_data["backend"].toStringRef();
    const CyclicFlowSettings settings = settings_of(ctx->saved_data["scale"].toDouble(), ctx->saved_data["norm_eps"].toDouble(),
                                                    ctx->saved_data["size"].toIntVector(), ctx->saved_data["keep"].toInt(), backend);
    const at::TensorList all(kept);
    const std::vector<int64_t> places = ctx->saved_data["places"].toIntVector();
    TensorVector out = dispatch_backward(all.slice(0, places.size()), places, all.slice(places.size()), grads, settings);
    out.resize(kInputs);  // cu_seqlens has no gradient
    TensorVector result;
    for (const int64_t place : places) result.push_back(out[static_cast<size_t>(place)]);
    result.resize(result.size() + 2);  // nor do `places` and the settings
    return once_differentiable(kCyclicFlow, std::move(result), kept, grads);
  }
};

using CyclicFlowResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Implementation of the public schema; defaults and the backend are resolved as in C++.
CyclicFlowResult cyclic_flow_entry(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_alpha, const Tensor& delta,
                                   const Tensor& beta, const Tensor& readout, const OptionalTensor& q_norm_weight,
                                   const OptionalTensor& k_norm_weight, const OptionalTensor& initial_k, const OptionalTensor& initial_v,
                                   const OptionalTensor& initial_clock, const OptionalTensor& cu_seqlens, std::optional<double> scale,
                                   double norm_eps, int64_t chunk, int64_t segment_chunks, bool save_scores, bool final_state,
                                   c10::string_view backend) {
  CyclicFlowInputs in{q, k, v, log_alpha, delta, beta, readout, q_norm_weight, k_norm_weight, std::nullopt, cu_seqlens};
  if (initial_k || initial_v || initial_clock) {
    in.initial_state = CyclicFlowState{initial_k.value_or(Tensor()), initial_v.value_or(Tensor()), initial_clock.value_or(Tensor())};
  }
  const CyclicFlowOptions options{
      parse_backend(std::string_view(backend.data(), backend.size())), scale, norm_eps, chunk, segment_chunks, save_scores, final_state};
  const CyclicFlowOutput out = cyclic_flow(in, options);
  if (!final_state) return {out.o, at::empty({0}, v.options()), at::empty({0}, v.options()), at::empty({0}, v.options())};
  return {out.o, out.final_state.k, out.final_state.v, out.final_state.clock};
}

}  // namespace

CyclicFlowOutput call_cyclic_flow(const CyclicFlowInputs& in, const CyclicFlowSettings& settings) {
  const TensorVector inputs = pack(in);
  TensorVector present;
  std::vector<int64_t> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    present.push_back(inputs[i]);
    places.push_back(static_cast<int64_t>(i));
  }
  const TensorVector out = CyclicFlowFunction::apply(at::TensorList(present), places, settings);
  return {out[0], settings.final_state ? CyclicFlowState{out[1], out[2], out[3]} : CyclicFlowState{}, settings.backend};
}

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  library.def(
      "cyclic_flow(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor delta, Tensor beta, Tensor readout, *, Tensor? "
      "q_norm_weight=None, "
      "Tensor? k_norm_weight=None, Tensor? initial_k=None, Tensor? initial_v=None, Tensor? initial_clock=None, Tensor? cu_seqlens=None, "
      "float? scale=None, float norm_eps=1e-6, int chunk=0, int segment_chunks=0, bool save_scores=True, bool final_state=True, str "
      "backend='auto') "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "_cyclic_flow_forward(Tensor[] inputs, int[] places, float scale, float norm_eps, int[] segment_size, int keep, bool final_state, "
      "str backend) -> Tensor[]");
  library.def(
      "_cyclic_flow_backward(Tensor[] inputs, int[] places, Tensor[] saved, Tensor?[] grads, float scale, float norm_eps, int[] "
      "segment_size, "
      "int keep, str backend) -> Tensor[]");
}

// A composite of differentiable calls: autograd sees the Function inside.
TORCH_LIBRARY_IMPL(cyfa, CompositeImplicitAutograd, library) { library.impl("cyclic_flow", cyclic_flow_entry); }

TORCH_LIBRARY_IMPL(cyfa, CPU, library) {
  library.impl("_cyclic_flow_forward", forward_kernel);
  library.impl("_cyclic_flow_backward", backward_kernel);
}

TORCH_LIBRARY_IMPL(cyfa, CUDA, library) {
  library.impl("_cyclic_flow_forward", forward_kernel);
  library.impl("_cyclic_flow_backward", backward_kernel);
}

TORCH_LIBRARY_IMPL(cyfa, Meta, library) {
  library.impl("_cyclic_flow_forward", forward_meta);
  library.impl("_cyclic_flow_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(cyfa, Autograd, library) {
  library.impl("_cyclic_flow_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("_cyclic_flow_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace cyfa::ops
