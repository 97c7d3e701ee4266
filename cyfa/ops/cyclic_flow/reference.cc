// The reference backend: copies the inputs to the CPU in double, runs the definition (cyfa/kernels/cyclic_flow/reference/reference.h) and
// copies the results back.
#include "cyfa/kernels/cyclic_flow/reference/reference.h"

#include "cyfa/ops/cyclic_flow/impl.h"

namespace cyfa::ops {
namespace {

namespace ref = cyclic_flow::reference;

at::Tensor host_double(const at::Tensor& x) { return x.defined() ? x.detach().to(at::kCPU, at::kDouble).contiguous() : x; }
const double* data(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<double>() : nullptr; }
at::Tensor optional(const std::optional<at::Tensor>& x) { return x ? host_double(*x) : at::Tensor(); }

// The inputs in double on the host, and the reference's view of them.
struct HostInputs {
  at::Tensor q, k, v, log_alpha, delta, beta, readout, q_weight, k_weight, state_k, state_v, clock;
  std::vector<int64_t> offsets;
  ref::Inputs raw;

  HostInputs(const CyclicFlowInputs& in, const CyclicFlowSettings& settings)
      : q(host_double(in.q)),
        k(host_double(in.k)),
        v(host_double(in.v)),
        log_alpha(host_double(in.log_alpha)),
        delta(host_double(in.delta)),
        beta(host_double(in.beta)),
        readout(host_double(in.readout)),
        q_weight(optional(in.q_norm_weight)),
        k_weight(optional(in.k_norm_weight)) {
    const CyclicFlowShape s = check_cyclic_flow(in);
    offsets = cyclic_flow_offsets(in, s);
    if (in.initial_state) {
      state_k = host_double(in.initial_state->k);
      state_v = host_double(in.initial_state->v);
      clock = host_double(in.initial_state->clock);
    }
    raw.shape = {s.N, s.B * s.T, s.H, s.K, s.V, s.M};
    raw.offsets = offsets.data();
    raw.q = data(q);
    raw.k = data(k);
    raw.v = data(v);
    raw.log_alpha = data(log_alpha);
    raw.delta = data(delta);
    raw.beta = data(beta);
    raw.readout = data(readout);
    raw.q_norm_weight = data(q_weight);
    raw.k_norm_weight = data(k_weight);
    raw.initial_k = data(state_k);
    raw.initial_v = data(state_v);
    raw.initial_clock = data(clock);
    raw.scale = settings.scale;
    raw.norm_eps = settings.norm_eps;
  }
};

void fill(const at::Tensor& to, const std::vector<double>& from) {
  if (to.defined()) to.copy_(at::tensor(from, at::kDouble).view(to.sizes()));
}

std::string take_all(const CyclicFlowInputs&) { return ""; }

std::vector<at::Tensor> save_nothing(const at::TensorOptions&, const CyclicFlowShape&, const CyclicFlowSettings&) { return {}; }

CyclicFlowForward forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings) {
  CyclicFlowForward out = empty_cyclic_flow_forward(in, check_cyclic_flow(in));
  const HostInputs host(in, settings);
  const ref::Outputs result = ref::forward_absolute(host.raw);
  fill(out.o, result.o);
  fill(out.final_state.k, result.final_k);
  fill(out.final_state.v, result.final_v);
  fill(out.final_state.clock, result.final_clock);
  return out;
}

CyclicFlowGradients backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings, at::TensorList,
                             const CyclicFlowOutputGradients& grad) {
  CyclicFlowGradients out = empty_cyclic_flow_gradients(in);
  const HostInputs host(in, settings);
  const at::Tensor o = host_double(grad.o);
  const at::Tensor k = host_double(grad.final_state.k);
  const at::Tensor v = host_double(grad.final_state.v);
  const at::Tensor clock = host_double(grad.final_state.clock);
  const ref::InputGradients result = ref::backward_absolute(host.raw, {data(o), data(k), data(v), data(clock)});
  fill(out.q, result.q);
  fill(out.k, result.k);
  fill(out.v, result.v);
  fill(out.log_alpha, result.log_alpha);
  fill(out.delta, result.delta);
  fill(out.beta, result.beta);
  fill(out.readout, result.readout);
  fill(out.q_norm_weight, result.q_norm_weight);
  fill(out.k_norm_weight, result.k_norm_weight);
  fill(out.initial_state.k, result.initial_k);
  fill(out.initial_state.v, result.initial_v);
  fill(out.initial_state.clock, result.initial_clock);
  return out;
}

}  // namespace

CyclicFlowBackend cyclic_flow_reference() { return {Backend::kReference, take_all, call_cyclic_flow, forward, backward, save_nothing}; }

}  // namespace cyfa::ops
