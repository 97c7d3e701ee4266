// cyclic_flow_step: one token for a batch of states, in place. Chooses the backend; runs the CPU kernel on all cores, or a few ATen calls
// on other devices.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "cyfa/kernels/cyclic_flow/cpu/cpu_step.h"
#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/common/grain.h"
#include "cyfa/ops/common/in_place.h"
#include "cyfa/ops/cyclic_flow/impl.h"
#include "cyfa/ops/cyclic_flow/readout.h"
#include "cyfa/ops/cyclic_flow/step_impl.h"

namespace cyfa::ops {
namespace {

constexpr const char* kOp = "cyclic_flow_step";

void check_state(const char* name, const at::Tensor& x, const char* asked_by, at::ScalarType dtype) {
  check::same_dtype(kOp, name, x, asked_by, dtype);
  if (!x.is_contiguous()) check::fail(kOp, std::string(name) + " is a strided view, wanted a contiguous tensor (it is updated in place)");
}

void check_all(const CyclicFlowStepInputs& in, const CyclicFlowState& state) {
  check::shape(kOp, "q", in.q, {{"B", -1}, {"H", -1}, {"K", -1}});
  const int64_t B = in.q.size(0);
  const int64_t H = in.q.size(1);
  const int64_t K = in.q.size(2);
  check::shape(kOp, "k", in.k, {{"B", B}, {"H", H}, {"K", K}});
  check::shape(kOp, "v", in.v, {{"B", B}, {"H", H}, {"V", -1}});
  const int64_t V = in.v.size(2);
  check::widths(kOp, H, K, V);
  check::shape(kOp, "log_alpha", in.log_alpha, {{"B", B}, {"H", H}});
  check::shape(kOp, "delta", in.delta, {{"B", B}, {"H", H}});
  check::shape(kOp, "beta", in.beta, {{"B", B}, {"H", H}});
  check::shape(kOp, "readout_table", in.readout_table, {{"H", H}, {"M", -1}, {"M", -1}});
  check::shape(kOp, "readout_table", in.readout_table, {{"H", H}, {"M", -1}, {"M", in.readout_table.size(1)}});
  const int64_t M = in.readout_table.size(1);
  if (M < 2 || M % 2 != 0) check::fail(kOp, "readout_table has " + std::to_string(M) + " stored slots, wanted an even number");
  check::shape(kOp, "state.k", state.k, {{"B", B}, {"H", H}, {"K", K}, {"M", M}});
  check::shape(kOp, "state.v", state.v, {{"B", B}, {"H", H}, {"M", M}, {"V", V}});
  check::shape(kOp, "state.clock", state.clock, {{"B", B}, {"H", H}});
  const at::ScalarType type = state.k.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  check_state("state.k", state.k, "states", type);
  check_state("state.v", state.v, "state.k", type);
  check_state("state.clock", state.clock, "states", at::kDouble);
  const at::Device device = in.q.device();
  for (const auto& [name, x] :
       {std::pair<const char*, const std::optional<at::Tensor>&>{"q_norm_weight", in.q_norm_weight}, {"k_norm_weight", in.k_norm_weight}}) {
    if (!x) continue;
    check::shape(kOp, name, *x, {{"K", K}});
    check::floating(kOp, name, *x);
    check::same_device(kOp, name, *x, "q", device);
  }
  for (const auto& [name, x] : {std::pair<const char*, const at::Tensor&>{"k", in.k},
                                {"v", in.v},
                                {"log_alpha", in.log_alpha},
                                {"delta", in.delta},
                                {"beta", in.beta},
                                {"readout_table", in.readout_table}}) {
    check::floating(kOp, name, x);
    check::same_device(kOp, name, x, "q", device);
  }
  check::floating(kOp, "q", in.q);
  for (const auto& [name, x] :
       {std::pair<const char*, const at::Tensor&>{"state.k", state.k}, {"state.v", state.v}, {"state.clock", state.clock}}) {
    check::same_device(kOp, name, x, "q", device);
  }
  check::written(kOp, {{"state.k", state.k}, {"state.v", state.v}, {"state.clock", state.clock}},
                 {{"q", in.q},
                  {"k", in.k},
                  {"v", in.v},
                  {"log_alpha", in.log_alpha},
                  {"delta", in.delta},
                  {"beta", in.beta},
                  {"readout_table", in.readout_table},
                  {"q_norm_weight", in.q_norm_weight.value_or(at::Tensor())},
                  {"k_norm_weight", in.k_norm_weight.value_or(at::Tensor())}});
  check::log_alpha(kOp, in.log_alpha);
}

at::Tensor plain(const at::Tensor& x) { return x.detach().to(at::kFloat).contiguous(); }
at::Tensor plain(const std::optional<at::Tensor>& x) { return x ? plain(*x) : at::Tensor(); }
const float* data(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

at::Tensor step_on_cpu(const CyclicFlowStepInputs& in, const CyclicFlowState& state, const StepSettings& settings) {
  const at::Tensor q = plain(in.q), k = plain(in.k), v = plain(in.v), log_alpha = plain(in.log_alpha), delta = plain(in.delta),
                   beta = plain(in.beta), table = plain(in.readout_table), q_weight = plain(in.q_norm_weight),
                   k_weight = plain(in.k_norm_weight);
  const at::Tensor o = at::empty(v.sizes(), v.options());
  cyclic_flow::StepParams p;
  p.B = q.size(0);
  p.H = q.size(1);
  p.K = q.size(2);
  p.V = v.size(2);
  p.M = table.size(1);
  p.q = data(q);
  p.k = data(k);
  p.v = data(v);
  p.log_alpha = data(log_alpha);
  p.delta = data(delta);
  p.beta = data(beta);
  p.readout_table = data(table);
  p.q_norm_weight = data(q_weight);
  p.k_norm_weight = data(k_weight);
  p.scale = static_cast<float>(settings.scale);
  p.norm_eps = static_cast<float>(settings.norm_eps);
  p.state_k = state.k.data_ptr<float>();
  p.state_v = state.v.data_ptr<float>();
  p.clock = state.clock.data_ptr<double>();
  p.o = o.data_ptr<float>();
  const cyclic_flow::Isa isa = cyclic_flow::best_isa();
  at::parallel_for(0, p.B * p.H, grain((p.K + p.V) * p.M), [&](int64_t begin, int64_t end) {
    std::vector<float> workspace(static_cast<size_t>(cyclic_flow::step_workspace_floats(p)));
    cyclic_flow::step_cpu(p, begin, end, workspace.data(), isa);
  });
  return o;
}

at::Tensor normed(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return weight.defined() ? x * at::rsqrt(x.square().mean(-1, true).add_(eps)) * weight : x;
}

at::Tensor step_on_aten(const CyclicFlowStepInputs& in, const CyclicFlowState& state, const StepSettings& settings) {
  const at::Tensor table = plain(in.readout_table);
  const int64_t M = table.size(1);
  const at::Tensor q = normed(plain(in.q), plain(in.q_norm_weight), settings.norm_eps) * settings.scale;
  const at::Tensor k = normed(plain(in.k), plain(in.k_norm_weight), settings.norm_eps);
  state.clock.add_(in.delta);
  const ClockPhases phases(state.clock, M, at::kFloat);
  const at::Tensor write = temporal_addresses(phases) * plain(in.beta).unsqueeze(-1);
  const at::Tensor alpha = plain(in.log_alpha).exp().unsqueeze(-1).unsqueeze(-1);
  state.k.mul_(alpha).addcmul_(k.unsqueeze(-1), write.unsqueeze(-2));
  state.v.mul_(alpha).addcmul_(write.unsqueeze(-1), plain(in.v).unsqueeze(-2));
  const auto as_rows = [](const at::Tensor& x) { return x.flatten(0, 1).unsqueeze(1).unsqueeze(1); };  // [B, H, M] -> [B * H, 1, 1, M]
  const at::Tensor scores = at::matmul(q.unsqueeze(-2), state.k).squeeze(-2);
  ClockPhases rows = phases;
  rows.forward = as_rows(phases.forward);
  rows.backward = as_rows(phases.backward);
  const at::Tensor weights = read_slots(as_rows(scores), rows, table).weights.view_as(scores);
  return at::matmul(weights.unsqueeze(-2), state.v).squeeze(-2);
}

// The op's schema: updates state_k, state_v and clock in place.
at::Tensor step_entry(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha, const at::Tensor& delta,
                      const at::Tensor& beta, const at::Tensor& table, at::Tensor state_k, at::Tensor state_v, at::Tensor clock,
                      const std::optional<at::Tensor>& q_norm_weight, const std::optional<at::Tensor>& k_norm_weight,
                      std::optional<double> scale, double norm_eps, c10::string_view backend) {
  CyclicFlowOptions options;
  options.backend = parse_backend(std::string_view(backend.data(), backend.size()));
  options.scale = scale;
  options.norm_eps = norm_eps;
  return cyclic_flow_step({q, k, v, log_alpha, delta, beta, table, q_norm_weight, k_norm_weight}, {state_k, state_v, clock}, options);
}

at::Tensor step_meta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha, const at::Tensor& delta,
                     const at::Tensor& beta, const at::Tensor& table, at::Tensor state_k, at::Tensor state_v, at::Tensor clock,
                     const std::optional<at::Tensor>& q_norm_weight, const std::optional<at::Tensor>& k_norm_weight, std::optional<double>,
                     double, c10::string_view) {
  check_all({q, k, v, log_alpha, delta, beta, table, q_norm_weight, k_norm_weight}, {state_k, state_v, clock});
  return at::empty_symint(v.sym_sizes(), v.options());
}

at::Tensor table_meta(const at::Tensor& readout) {
  const at::ScalarType compute = check_readout(readout);
  const int64_t M = readout.size(1) + 1;
  return at::empty({readout.size(0), M, M}, readout.options().dtype(compute));
}

}  // namespace

#ifndef CYFA_CUDA
std::string step_sm90_refusal(const CyclicFlowStepInputs&, const CyclicFlowState&) { return "this build has no CUDA kernels"; }
at::Tensor step_on_sm90(const CyclicFlowStepInputs&, const CyclicFlowState&, const StepSettings&) { return {}; }
#endif

std::vector<BackendOffer> cyclic_flow_step_backends(const CyclicFlowStepInputs& in, const CyclicFlowState& state) {
  check_all(in, state);
  return {{Backend::kSm90, step_sm90_refusal(in, state)},
          {Backend::kPortable, ""},
          {Backend::kReference, "the reference has no step of its own: call cyclic_flow with T = 1"}};
}

at::Tensor cyclic_flow_step(const CyclicFlowStepInputs& in, const CyclicFlowState& state, const CyclicFlowOptions& options) {
  const WithoutAutocast plain_types;
  const Backend backend = choose_backend(kOp, options.backend, cyclic_flow_step_backends(in, state));
  check::norm_eps(kOp, options.norm_eps);
  const StepSettings settings{options.scale.value_or(1.0 / std::sqrt(static_cast<double>(in.q.size(2)))),
                              std::max(options.norm_eps, kLeastNormEps)};
  check::scale(kOp, settings.scale);
  mark_written(kOp, {state.k, state.v, state.clock});
  const at::NoGradGuard no_grad;
  if (backend == Backend::kSm90) return step_on_sm90(in, state, settings);
  const auto step = [&](const CyclicFlowState& wide) {
    return in.q.is_cpu() ? step_on_cpu(in, wide, settings) : step_on_aten(in, wide, settings);
  };
  if (state.k.scalar_type() == at::kFloat) return step(state).to(in.v.scalar_type());
  const CyclicFlowState wide{state.k.to(at::kFloat), state.v.to(at::kFloat), state.clock};
  const at::Tensor o = step(wide);
  state.k.copy_(wide.k);
  state.v.copy_(wide.v);
  return o.to(in.v.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  library.def(
      "cyclic_flow_step(Tensor q, Tensor k, Tensor v, Tensor log_alpha, Tensor delta, Tensor beta, Tensor readout_table, Tensor(a!) "
      "state_k, "
      "Tensor(b!) state_v, Tensor(c!) clock, *, Tensor? q_norm_weight=None, Tensor? k_norm_weight=None, float? scale=None, float "
      "norm_eps=1e-6, "
      "str backend='auto') -> Tensor");
  library.def("cyclic_flow_readout_table(Tensor readout) -> Tensor");
}

TORCH_LIBRARY_IMPL(cyfa, CPU, library) {
  library.impl("cyclic_flow_step", step_entry);
  library.impl("cyclic_flow_readout_table", cyclic_flow_readout_table);
}

TORCH_LIBRARY_IMPL(cyfa, CUDA, library) {
  library.impl("cyclic_flow_step", step_entry);
  library.impl("cyclic_flow_readout_table", cyclic_flow_readout_table);
}

TORCH_LIBRARY_IMPL(cyfa, Meta, library) {
  library.impl("cyclic_flow_step", step_meta);
  library.impl("cyclic_flow_readout_table", table_meta);
}

TORCH_LIBRARY_IMPL(cyfa, Autograd, library) {
  library.impl("cyclic_flow_step", torch::autograd::autogradNotImplementedFallback());
  library.impl("cyclic_flow_readout_table", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace cyfa::ops
