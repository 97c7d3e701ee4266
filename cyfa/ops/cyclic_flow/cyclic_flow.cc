// Entry point of cyclic_flow: argument checks, defaults, choice of the backend, shapes of the results.
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

#include <algorithm>
#include <cmath>

#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/cyclic_flow/impl.h"
#include "cyfa/ops/cyclic_flow/readout.h"

namespace cyfa::ops {
namespace {

constexpr const char* kOp = kCyclicFlow;

void check_gate(const char* name, const at::Tensor& x, const CyclicFlowShape& s, at::Device device) {
  check::shape(kOp, name, x, {{"B", s.B}, {"T", s.T}, {"H", s.H}});
  check::floating(kOp, name, x);
  check::same_device(kOp, name, x, "q", device);
}

void check_norm_weight(const char* name, const std::optional<at::Tensor>& x, int64_t K, at::Device device) {
  if (!x) return;
  check::shape(kOp, name, *x, {{"K", K}});
  check::floating(kOp, name, *x);
  check::same_device(kOp, name, *x, "q", device);
}

}  // namespace

CyclicFlowShape check_cyclic_flow(const CyclicFlowInputs& in) {
  check::shape(kOp, "q", in.q, {{"B", -1}, {"T", -1}, {"H", -1}, {"K", -1}});
  check::shape(kOp, "v", in.v, {{"B", in.q.size(0)}, {"T", in.q.size(1)}, {"H", in.q.size(2)}, {"V", -1}});
  CyclicFlowShape s{};
  s.B = in.q.size(0);
  s.T = in.q.size(1);
  s.H = in.q.size(2);
  s.K = in.q.size(3);
  s.V = in.v.size(3);
  check::widths(kOp, s.H, s.K, s.V);
  check::floating(kOp, "q", in.q);
  const at::Device device = in.q.device();
  check::shape(kOp, "k", in.k, {{"B", s.B}, {"T", s.T}, {"H", s.H}, {"K", s.K}});
  for (const auto& [name, x] : {std::pair<const char*, const at::Tensor&>{"k", in.k}, {"v", in.v}}) {
    check::same_dtype(kOp, name, x, "q", in.q.scalar_type());
    check::same_device(kOp, name, x, "q", device);
  }
  check_gate("log_alpha", in.log_alpha, s, device);
  check_gate("delta", in.delta, s, device);
  check_gate("beta", in.beta, s, device);

  check::shape(kOp, "readout", in.readout, {{"H", s.H}, {"m", -1}, {"m", -1}});
  const int64_t m = in.readout.size(1);
  if (in.readout.size(2) != m || m < 1 || m % 2 == 0) {
    check::fail(kOp, "readout is " + std::to_string(m) + " x " + std::to_string(in.readout.size(2)) +
                         " per head, wanted m x m with m odd (M = m + 1 stored slots, M even)");
  }
  check::floating(kOp, "readout", in.readout);
  check::same_device(kOp, "readout", in.readout, "q", device);
  s.M = m + 1;
  check_norm_weight("q_norm_weight", in.q_norm_weight, s.K, device);
  check_norm_weight("k_norm_weight", in.k_norm_weight, s.K, device);

  s.packed = in.cu_seqlens.has_value();
  if (s.packed) check::borders(kOp, *in.cu_seqlens, s.B, device);
  s.N = s.packed ? in.cu_seqlens->size(0) - 1 : s.B;
  s.compute = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (in.initial_state) {
    const CyclicFlowState& state = *in.initial_state;
    check::shape(kOp, "initial_state.k", state.k, {{"N", s.N}, {"H", s.H}, {"K", s.K}, {"M", s.M}});
    check::shape(kOp, "initial_state.v", state.v, {{"N", s.N}, {"H", s.H}, {"M", s.M}, {"V", s.V}});
    check::shape(kOp, "initial_state.clock", state.clock, {{"N", s.N}, {"H", s.H}});
    check::same_dtype(kOp, "initial_state.k", state.k, "the compute type of q", s.compute);
    check::same_dtype(kOp, "initial_state.v", state.v, "the compute type of q", s.compute);
    if (state.clock.scalar_type() != at::kDouble && state.clock.scalar_type() != at::kFloat) {
      check::fail(kOp,
                  std::string("initial_state.clock has type ") + c10::toString(state.clock.scalar_type()) + ", wanted Double or Float");
    }
    for (const auto& [name, x] : {std::pair<const char*, const at::Tensor&>{"initial_state.k", state.k},
                                  {"initial_state.v", state.v},
                                  {"initial_state.clock", state.clock}}) {
      check::same_device(kOp, name, x, "q", device);
    }
  }
  return s;
}

bool needs_gradient(const CyclicFlowInputs& in) {
  if (!at::GradMode::is_enabled()) return false;
  bool any = false;
  const auto look = [&](const at::Tensor& x) { any = any || (x.defined() && x.requires_grad()); };
  for (const at::Tensor& x : {in.q, in.k, in.v, in.log_alpha, in.delta, in.beta, in.readout}) look(x);
  if (in.q_norm_weight) look(*in.q_norm_weight);
  if (in.k_norm_weight) look(*in.k_norm_weight);
  if (in.initial_state) {
    for (const at::Tensor& x : {in.initial_state->k, in.initial_state->v, in.initial_state->clock}) look(x);
  }
  return any;
}

std::vector<int64_t> cyclic_flow_offsets(const CyclicFlowInputs& in, const CyclicFlowShape& s) {
  return s.packed ? check::sequence_offsets(kOp, *in.cu_seqlens, s.T) : batch_offsets(s.B, s.T);
}

CyclicFlowForward empty_cyclic_flow_forward(const CyclicFlowInputs& in, const CyclicFlowShape& s, bool states) {
  const auto compute = in.q.options().dtype(s.compute);
  const int64_t N = states ? s.N : 0;
  CyclicFlowForward out;
  out.o = at::empty({s.B, s.T, s.H, s.V}, in.v.options());
  out.final_state = {at::empty({N, s.H, s.K, s.M}, compute), at::empty({N, s.H, s.M, s.V}, compute),
                     at::empty({s.N, s.H}, in.q.options().dtype(at::kDouble))};
  return out;
}

CyclicFlowGradients empty_cyclic_flow_gradients(const CyclicFlowInputs& in) {
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  CyclicFlowGradients out;
  out.q = like(in.q);
  out.k = like(in.k);
  out.v = like(in.v);
  out.log_alpha = like(in.log_alpha);
  out.delta = like(in.delta);
  out.beta = like(in.beta);
  out.readout = like(in.readout);
  if (in.q_norm_weight) out.q_norm_weight = like(*in.q_norm_weight);
  if (in.k_norm_weight) out.k_norm_weight = like(*in.k_norm_weight);
  if (in.initial_state) out.initial_state = {like(in.initial_state->k), like(in.initial_state->v), like(in.initial_state->clock)};
  return out;
}

namespace {

// Fastest first.
const std::vector<CyclicFlowBackend>& backends() {
  static const std::vector<CyclicFlowBackend> all = {cyclic_flow_sm90(), cyclic_flow_portable(), cyclic_flow_reference()};
  return all;
}

std::vector<BackendOffer> offers_of(const CyclicFlowInputs& in) {
  std::vector<BackendOffer> offers;
  for (const CyclicFlowBackend& backend : backends()) offers.push_back({backend.id, backend.refusal(in)});
  return offers;
}

}  // namespace

const CyclicFlowBackend& cyclic_flow_backend(Backend id) {
  for (const CyclicFlowBackend& backend : backends()) {
    if (backend.id == id) return backend;
  }
  check::fail(kOp, std::string("has no backend ") + backend_name(id));
}

std::vector<BackendOffer> cyclic_flow_backends(const CyclicFlowInputs& in) {
  check_cyclic_flow(in);
  return offers_of(in);
}

CyclicFlowOutput cyclic_flow(const CyclicFlowInputs& in, const CyclicFlowOptions& options) {
  const WithoutAutocast plain_types;
  const CyclicFlowShape shape = check_cyclic_flow(in);
  CyclicFlowSettings settings;
  settings.backend = choose_backend(kOp, options.backend, offers_of(in));
  settings.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.K)));
  settings.norm_eps = std::max(options.norm_eps, kLeastNormEps);
  settings.final_state = options.final_state;
  settings.again = options.again;
  check::scale(kOp, settings.scale);
  check::norm_eps(kOp, options.norm_eps);
  settings.size = segment_size(kOp, options.chunk, options.segment_chunks, shape.H, in.q.device());
  if (!needs_gradient(in)) {
    settings.keep = Keep::kNothing;
  } else {
    settings.keep = options.save_scores ? Keep::kStatesAndScores : Keep::kStates;
  }
  return cyclic_flow_backend(settings.backend).call(in, settings);
}

at::ScalarType check_readout(const at::Tensor& readout) {
  constexpr const char* kTable = "cyclic_flow_readout_table";
  check::shape(kTable, "readout", readout, {{"H", -1}, {"m", -1}, {"m", -1}});
  check::shape(kTable, "readout", readout, {{"H", -1}, {"m", -1}, {"m", readout.size(1)}});
  check::floating(kTable, "readout", readout);
  if (readout.size(1) % 2 == 0) check::fail(kTable, "m is " + std::to_string(readout.size(1)) + ", wanted odd");
  return readout.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor cyclic_flow_readout_table(const at::Tensor& readout) {
  const WithoutAutocast plain_types;
  const at::ScalarType compute = check_readout(readout);
  return readout_table(readout.detach(), compute);
}

}  // namespace cyfa::ops
