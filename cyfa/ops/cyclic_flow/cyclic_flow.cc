// Entry point of cyclic_flow: argument checks, defaults, choice of the backend, shapes of the results.
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

#include <algorithm>
#include <cmath>

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
  s.N = s.packed ? in.cu_seqlens->numel() - 1 : s.B;
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

CyclicFlowForward empty_cyclic_flow_forward(const CyclicFlowInputs& in, const CyclicFlowShape& s, const CyclicFlowSettings& settings) {
  const auto compute = in.q.options().dtype(s.compute);
  const auto clock = in.q.options().dtype(at::kDouble);
  CyclicFlowForward out;
  out.o = at::empty({s.B, s.T, s.H, s.V}, in.v.options());
  const int64_t N = settings.backend == Backend::kSm90 && !settings.final_state ? 0 : s.N;  // the other backends need it as working memory
  out.final_state = {at::empty({N, s.H, s.K, s.M}, compute), at::empty({N, s.H, s.M, s.V}, compute), at::empty({s.N, s.H}, clock)};
  if (settings.backend == Backend::kSm90) {
    out.saved = empty_cyclic_flow_sm90_saved(in, s, settings.keep == Keep::kStatesAndScores);
    return out;
  }
  const bool kept = settings.backend == Backend::kPortable && settings.keep != Keep::kNothing;
  const int64_t rows = kept ? saved_state_rows(s.packed, s.B, s.T, settings.size) : 0;
  out.saved.k = at::empty({rows, s.H, s.K, s.M}, compute);
  out.saved.v = at::empty({rows, s.H, s.M, s.V}, compute);
  out.saved.clock = at::empty({kept ? s.B * s.T : 0, s.H}, clock);
  out.saved.scores = at::empty({kept && settings.keep == Keep::kStatesAndScores ? s.B * s.T : 0, s.H, s.M}, compute);
  return out;
}

// Upper bounds that depend on shapes only, as torch.compile requires: each packed sequence ends in at most one partly filled tile. The
// sizes of a tile and a section are those of the sm90 kernels (sm90_forward.h).
CyclicFlowSaved empty_cyclic_flow_sm90_saved(const CyclicFlowInputs& in, const CyclicFlowShape& s, bool kept) {
  constexpr int64_t kTile = 128, kSection = 128;  // tokens, slots
  const int64_t sections = (s.M + kSection - 1) / kSection, filled = sections * kSection;
  const int64_t tiles = s.packed ? s.B * s.T / kTile + s.N : s.B * ((s.T + kTile - 1) / kTile);
  const int64_t tokens = s.B * s.T;
  const auto single = in.q.options().dtype(at::kFloat);
  CyclicFlowSaved saved;
  saved.k = at::empty({kept ? sections * (tiles * s.H * 2 + 1) : 0, kSection, std::max(s.K, s.V)}, in.q.options());
  saved.v = at::empty({kept ? s.H * filled * filled / 2 + s.H + s.K : 0}, single);
  saved.clock = at::empty({kept ? 5 : 0, s.H, tokens}, single);
  saved.scores = at::empty({kept ? tokens : 0, s.H, filled}, in.q.options().dtype(at::kHalf));
  return saved;
}

CyclicFlowGradients empty_cyclic_flow_gradients(const CyclicFlowInputs& in, const CyclicFlowShape&) {
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

#ifndef CYFA_CUDA
std::string cyclic_flow_sm90_refusal(const CyclicFlowInputs&) { return "this build has no CUDA kernels"; }
CyclicFlowForward cyclic_flow_sm90_forward(const CyclicFlowInputs&, const CyclicFlowSettings&) { return {}; }
CyclicFlowGradients cyclic_flow_sm90_backward(const CyclicFlowInputs&, const CyclicFlowSettings&, const CyclicFlowSaved&,
                                              const CyclicFlowOutputGradients&) {
  return {};
}
#endif

std::vector<BackendOffer> cyclic_flow_backends(const CyclicFlowInputs& in) {
  check_cyclic_flow(in);
  return {
      {Backend::kSm90, cyclic_flow_sm90_refusal(in)},
      {Backend::kPortable, ""},
      {Backend::kReference, ""},
  };
}

namespace {

// Head width of the sm90 kernel for heads of `columns`: 64, 128 or 256 for up to 128 slots, 256 for more.
int64_t sm90_width(int64_t columns, const CyclicFlowShape& shape) {
  constexpr int64_t kSection = 128;
  int64_t width = kSm90Width;
  while (shape.M <= kSection && width / 2 >= std::max<int64_t>(columns, kSm90Width / 4)) width /= 2;
  return width;
}

// Pads heads with zeros to K and V columns and calls the kernels. Padding changes no sum except RMSNorm's mean, which becomes K_old / K of
// its value: eps is scaled by the same ratio, and the norm weights by its square root.
CyclicFlowOutput call_filled_up(const CyclicFlowInputs& in, CyclicFlowSettings settings, const CyclicFlowShape& shape, int64_t K,
                                int64_t V) {
  const int64_t more_k = K - shape.K, more_v = V - shape.V;
  const double share = static_cast<double>(shape.K) / static_cast<double>(K);
  CyclicFlowInputs wide = in;
  wide.q = at::constant_pad_nd(in.q, {0, more_k});
  wide.k = at::constant_pad_nd(in.k, {0, more_k});
  wide.v = at::constant_pad_nd(in.v, {0, more_v});
  for (std::optional<at::Tensor>* weight : {&wide.q_norm_weight, &wide.k_norm_weight}) {
    if (*weight) *weight = at::constant_pad_nd(**weight * std::sqrt(share), {0, more_k});
  }
  if (in.initial_state) {
    wide.initial_state->k = at::constant_pad_nd(in.initial_state->k, {0, 0, 0, more_k});
    wide.initial_state->v = at::constant_pad_nd(in.initial_state->v, {0, more_v});
  }
  settings.norm_eps *= share;
  CyclicFlowOutput out = call_cyclic_flow(wide, settings);
  out.o = out.o.narrow(3, 0, shape.V).contiguous();
  if (settings.final_state) {
    out.final_state.k = out.final_state.k.narrow(2, 0, shape.K).contiguous();
    out.final_state.v = out.final_state.v.narrow(3, 0, shape.V).contiguous();
  }
  return out;
}

}  // namespace

CyclicFlowOutput cyclic_flow(const CyclicFlowInputs& in, const CyclicFlowOptions& options) {
  const CyclicFlowShape shape = check_cyclic_flow(in);
  CyclicFlowSettings settings;
  settings.backend = choose_backend(kOp, options.backend, cyclic_flow_backends(in));
  settings.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.K)));
  settings.norm_eps = options.norm_eps;
  settings.final_state = options.final_state;
  check::scale(kOp, settings.scale);
  check::norm_eps(kOp, settings.norm_eps);
  settings.size = segment_size(kOp, options.chunk, options.segment_chunks, shape.H, in.q.device());
  if (!needs_gradient(in)) {
    settings.keep = Keep::kNothing;
  } else {
    settings.keep = options.save_scores ? Keep::kStatesAndScores : Keep::kStates;
  }
  if (settings.backend == Backend::kSm90) {
    const int64_t K = sm90_width(shape.K, shape), V = sm90_width(shape.V, shape);
    if (K != shape.K || V != shape.V) return call_filled_up(in, settings, shape, K, V);
  }
  return call_cyclic_flow(in, settings);
}

at::Tensor cyclic_flow_readout_table(const at::Tensor& readout) {
  check::shape("cyclic_flow_readout_table", "readout", readout, {{"H", -1}, {"m", -1}, {"m", readout.dim() == 3 ? readout.size(1) : -1}});
  check::floating("cyclic_flow_readout_table", "readout", readout);
  if (readout.size(1) % 2 == 0) check::fail("cyclic_flow_readout_table", "m is " + std::to_string(readout.size(1)) + ", wanted odd");
  return readout_table(readout.detach(), readout.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace cyfa::ops
