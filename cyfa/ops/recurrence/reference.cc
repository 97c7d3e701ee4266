// The reference backend of the recurrences: copies the inputs to the host in double and runs the token loop of cyfa/kernels/recurrence.
#include "cyfa/ops/recurrence/impl.h"

namespace cyfa::ops {
namespace {

using at::Tensor;
namespace ref = recurrence::reference;

Tensor host(const Tensor& x) { return x.detach().to(at::kCPU, at::kDouble).contiguous(); }
Tensor host(const std::optional<Tensor>& x) { return x ? host(*x) : Tensor(); }
const double* data(const Tensor& x) { return x.defined() ? x.const_data_ptr<double>() : nullptr; }

struct HostInputs {
  Tensor q, k, v, log_alpha, beta, initial;
  std::vector<int64_t> offsets;
  ref::Inputs raw;

  HostInputs(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSizes& s, double scale)
      : q(host(in.q)),
        k(host(in.k)),
        v(host(in.v)),
        log_alpha(host(in.log_alpha)),
        beta(host(in.beta)),
        initial(host(in.initial_state)),
        offsets(recurrence_offsets(r, in, s)) {
    raw = {s.N,    s.B * s.T,       s.H,        s.K,           s.V,  offsets.data(), data(q), data(k), data(v),
           r.gate, data(log_alpha), data(beta), data(initial), scale};
  }
};

void fill(const Tensor& to, const std::vector<double>& from) {
  if (to.defined()) to.copy_(at::tensor(from, at::kDouble).view(to.sizes()));
}

std::string refusal(const Recurrence&, const RecurrenceInputs& in) { return shared_keys_refusal(in); }

std::vector<Tensor> save_nothing(const at::TensorOptions&, const RecurrenceSizes&, const RecurrenceSettings&) { return {}; }

RecurrenceForward forward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings) {
  const RecurrenceSizes s = recurrence_sizes(in);
  RecurrenceForward out = empty_forward(in, s, {});
  const ref::Outputs result = ref::forward(HostInputs(r, in, s, settings.scale).raw);
  fill(out.o, result.o);
  fill(out.final_state, result.final_state);
  return out;
}

RecurrenceGradients backward(const Recurrence& r, const RecurrenceInputs& in, const RecurrenceSettings& settings, at::TensorList,
                             const Tensor& grad_o, const Tensor& grad_final) {
  const RecurrenceSizes s = recurrence_sizes(in);
  RecurrenceGradients out = empty_gradients(in, s);
  const Tensor upstream = grad_o.defined() ? host(grad_o) : Tensor();
  const Tensor last = grad_final.defined() ? host(grad_final) : Tensor();
  const ref::InputGradients result = ref::backward(HostInputs(r, in, s, settings.scale).raw, data(upstream), data(last));
  fill(out.q, result.q);
  fill(out.k, result.k);
  fill(out.v, result.v);
  fill(out.log_alpha, result.log_alpha);
  fill(out.beta, result.beta);
  fill(out.initial_state, result.initial_state);
  return out;
}

}  // namespace

RecurrenceBackend recurrence_reference() { return {Backend::kReference, refusal, forward, backward, save_nothing, nullptr}; }

}  // namespace cyfa::ops
