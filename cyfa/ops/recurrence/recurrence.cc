// The functions of cyfa/ops/recurrence/table.h: argument checks, defaults, backend selection.
#include <algorithm>
#include <cmath>

#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/common/in_place.h"
#include "cyfa/ops/recurrence/dispatch.h"
#include "cyfa/ops/recurrence/impl.h"

namespace cyfa::ops {
namespace {

using at::Tensor;

// Checks that x has the dimensions named by `letters`.
void check_shape(const char* op, const char* name, const Tensor& x, std::string_view letters, const RecurrenceSizes& s) {
  const auto dim = [&](size_t i) -> check::Dim {
    switch (letters[i]) {
      case 'B': return {"B", s.B};
      case 'T': return {"T", s.T};
      case 'H': return {"H", s.H};
      case 'K': return {"K", s.K};
      default: return {"V", s.V};
    }
  };
  switch (letters.size()) {
    case 2: return check::shape(op, name, x, {dim(0), dim(1)});
    case 3: return check::shape(op, name, x, {dim(0), dim(1), dim(2)});
    default: return check::shape(op, name, x, {dim(0), dim(1), dim(2), dim(3)});
  }
}

bool is_fixed(const RecurrenceArgument& argument) { return std::string_view(argument.shape) == "H"; }

// Checks the op's own arguments: required ones have the right shapes, and no others are given.
void check_arguments(const char* op, const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSizes& s, bool step) {
  const auto taken = [&](auto member) {
    return std::any_of(r.arguments.begin(), r.arguments.end(), [&](const RecurrenceArgument& a) { return a.member == member; });
  };
  if (in.log_alpha && !taken(&RecurrenceInputs::log_alpha)) check::fail(op, "log_alpha is given, wanted none (the op has no gate)");
  if (in.beta && !taken(&RecurrenceInputs::beta)) check::fail(op, "beta is given, wanted none (the op is no delta rule)");
  for (const RecurrenceArgument& a : r.arguments) {
    std::string letters = is_fixed(a) ? "BTH" : a.shape;  // a fixed gate is already expanded
    if (step) std::erase(letters, 'T');
    const Tensor x = (in.*a.member).value_or(Tensor());
    check_shape(op, a.name, x, letters, s);
    check::floating(op, a.name, x);
    check::same_device(op, a.name, x, "q", in.q.device());
  }
}

std::string step_name(const Recurrence& r) { return std::string(r.op) + "_step"; }

void check_step(const Recurrence& r, const RecurrenceInputs& in, const Tensor& state) {
  const std::string name = step_name(r);
  const char* op = name.c_str();
  RecurrenceSizes s{};
  check::shape(op, "q", in.q, {{"B", -1}, {"H", -1}, {"K", -1}});
  s.B = in.q.size(0);
  s.H = in.q.size(1);
  s.K = in.q.size(2);
  check_shape(op, "k", in.k, "BHK", s);
  check::shape(op, "v", in.v, {{"B", s.B}, {"H", s.H}, {"V", -1}});
  s.V = in.v.size(2);
  check::widths(op, s.H, s.K, s.V);
  check_arguments(op, r, in, s, /*step=*/true);
  check_shape(op, "state", state, "BHKV", s);
  check::same_dtype(op, "state", state, "states", at::kFloat);
  if (!state.is_contiguous()) check::fail(op, "state is a strided view, wanted a contiguous tensor (it is updated in place)");
  for (const auto& [argument, x] : {std::pair<const char*, const Tensor&>{"q", in.q}, {"k", in.k}, {"v", in.v}, {"state", state}}) {
    check::floating(op, argument, x);
    check::same_device(op, argument, x, "q", in.q.device());
  }
  const Tensor none;
  check::written(op, {{"state", state}},
                 {{"q", in.q}, {"k", in.k}, {"v", in.v}, {"log_alpha", in.log_alpha.value_or(none)}, {"beta", in.beta.value_or(none)}});
  if (in.log_alpha) check::log_alpha(op, *in.log_alpha);
}

double scale_of(const char* op, const RecurrenceOptions& options, const Tensor& q) {
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
  check::scale(op, scale);
  return scale;
}

// Requires checked inputs. Backends that the op does not have are listed with a refusal, so that requesting one by name reports the reason.
std::vector<BackendOffer> offers_of(const Recurrence& r, const RecurrenceInputs& in) {
  std::vector<BackendOffer> offers;
  for (const Backend id : {Backend::kSm90, Backend::kPortable, Backend::kReference}) {
    if (std::none_of(r.backends.begin(), r.backends.end(), [&](const RecurrenceBackend& b) { return b.id == id; }))
      offers.push_back({id, std::string("this build has no ") + backend_name(id) + " kernels of " + r.op});
  }
  for (const RecurrenceBackend& backend : r.backends) offers.push_back({backend.id, backend.refusal(r, in)});
  return offers;
}

}  // namespace

void expand_fixed_gate(const Recurrence& r, RecurrenceInputs& in, int64_t rank) {
  if (!in.q.defined() || in.q.dim() != rank) return;
  for (const RecurrenceArgument& a : r.arguments) {
    if (!is_fixed(a)) continue;
    const Tensor gate = (in.*a.member).value_or(Tensor());
    check::shape(r.op, a.name, gate, {{"H", in.q.size(-2)}});
    check::floating(r.op, a.name, gate);
    check::same_device(r.op, a.name, gate, "q", in.q.device());
    check::log_alpha(r.op, gate, a.name);
    in.*a.member = gate.to(at::kDouble).expand(in.q.sizes().slice(0, static_cast<size_t>(rank) - 1));
  }
}

RecurrenceSizes recurrence_sizes(const RecurrenceInputs& in) {
  RecurrenceSizes s{};
  s.B = in.q.size(0);
  s.T = in.q.size(1);
  s.H = in.v.size(2);
  s.K = in.q.size(3);
  s.V = in.v.size(3);
  s.packed = in.cu_seqlens.has_value();
  s.N = !s.packed ? s.B : in.cu_seqlens->dim() == 0 ? 0 : in.cu_seqlens->size(0) - 1;  // borders() refuses a number
  s.compute = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return s;
}

std::string shared_keys_refusal(const RecurrenceInputs& in) {
  return in.q.size(-2) == in.v.size(-2) ? "" : "heads share keys, which this backend does not do";
}

RecurrenceSizes check_recurrence(const Recurrence& r, const RecurrenceInputs& in, bool shared_keys) {
  check::shape(r.op, "q", in.q, {{"B", -1}, {"T", -1}, {"H", -1}, {"K", -1}});
  check::shape(r.op, "k", in.k, {{"B", in.q.size(0)}, {"T", in.q.size(1)}, {"H", in.q.size(2)}, {"K", in.q.size(3)}});
  const bool multiple = shared_keys && in.v.defined() && in.v.dim() == 4 && in.q.size(2) > 0 && in.v.size(2) % in.q.size(2) == 0;
  const int64_t heads = multiple ? in.v.size(2) : in.q.size(2);
  check::shape(r.op, "v", in.v, {{"B", in.q.size(0)}, {"T", in.q.size(1)}, {"H", heads}, {"V", -1}});
  if (in.cu_seqlens && !in.cu_seqlens->defined()) check::borders(r.op, *in.cu_seqlens, in.q.size(0), in.q.device());
  const RecurrenceSizes s = recurrence_sizes(in);
  check::widths(r.op, s.H, s.K, s.V);
  check::floating(r.op, "q", in.q);
  for (const auto& [name, x] : {std::pair<const char*, const Tensor&>{"k", in.k}, {"v", in.v}}) {
    check::same_dtype(r.op, name, x, "q", in.q.scalar_type());
    check::same_device(r.op, name, x, "q", in.q.device());
  }
  check_arguments(r.op, r, in, s, /*step=*/false);
  if (s.packed) check::borders(r.op, *in.cu_seqlens, s.B, in.q.device());
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

RecurrenceForward empty_forward(const RecurrenceInputs& in, const RecurrenceSizes& s, std::vector<Tensor> saved) {
  return {at::empty({s.B, s.T, s.H, s.V}, in.v.options()), at::empty({s.N, s.H, s.K, s.V}, in.q.options().dtype(s.compute)),
          std::move(saved)};
}

RecurrenceGradients empty_gradients(const RecurrenceInputs& in, const RecurrenceSizes& s) {
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const auto like_given = [&](const std::optional<Tensor>& x) { return x ? like(*x) : Tensor(); };
  return {like(in.q),          like(in.k),
          like(in.v),          like_given(in.log_alpha),
          like_given(in.beta), at::empty({s.N, s.H, s.K, s.V}, in.q.options().dtype(s.compute))};
}

RecurrenceOutput run_recurrence(const Recurrence& r, RecurrenceInputs in, const RecurrenceOptions& options) {
  const WithoutAutocast plain_types;
  expand_fixed_gate(r, in, 4);
  const RecurrenceSizes s = check_recurrence(r, in, options.shared_keys);
  if (in.q.size(2) != s.H) {
    const std::vector<BackendOffer> offers = offers_of(r, in);
    const bool shares = std::any_of(offers.begin(), offers.end(), [&](const BackendOffer& offer) {
      return offer.refusal.empty() && (options.backend == Backend::kAuto || options.backend == offer.backend);
    });
    if (!shares) {
      in.q = in.q.repeat_interleave(s.H / in.q.size(2), 2);
      in.k = in.k.repeat_interleave(s.H / in.k.size(2), 2);
    }
  }
  RecurrenceSettings settings;
  settings.scale = scale_of(r.op, options, in.q);
  const Backend backend = choose_backend(r.op, options.backend, offers_of(r, in));
  settings.size = segment_size(r.op, options.chunk, options.segment_chunks, s.H, in.q.device());
  return dispatch_recurrence(r, in, settings, backend);
}

at::Tensor step_recurrence(const Recurrence& r, RecurrenceInputs in, const Tensor& state, const RecurrenceOptions& options) {
  const WithoutAutocast plain_types;
  const std::string name = step_name(r);
  expand_fixed_gate(r, in, 3);
  check_step(r, in, state);
  const double scale = scale_of(name.c_str(), options, in.q);
  if (in.q.is_meta()) return at::empty(in.v.sizes(), in.v.options());
  const auto able = std::find_if(r.backends.begin(), r.backends.end(),
                                 [&](const RecurrenceBackend& b) { return b.step != nullptr && b.refusal(r, in).empty(); });
  if (able == r.backends.end()) check::fail(name.c_str(), "no backend takes these inputs");
  mark_written(name.c_str(), {state});
  const at::NoGradGuard no_grad;
  return able->step(r, in, state, scale).to(in.v.scalar_type());
}

std::vector<BackendOffer> recurrence_backends(const Recurrence& r, RecurrenceInputs in) {
  expand_fixed_gate(r, in, 4);
  check_recurrence(r, in);
  return offers_of(r, in);
}

}  // namespace cyfa::ops
