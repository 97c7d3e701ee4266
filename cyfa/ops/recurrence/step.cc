// The portable backend's decode step: one token of each sequence, states updated in place. A multithreaded kernel on a CPU, a few ATen
// calls elsewhere.
#include <ATen/Parallel.h>

#include "cyfa/kernels/recurrence/step.h"
#include "cyfa/ops/common/grain.h"
#include "cyfa/ops/recurrence/impl.h"

namespace cyfa::ops {
namespace {

using at::Tensor;

Tensor plain(const Tensor& x) { return x.detach().to(at::kFloat).contiguous(); }
Tensor plain(const std::optional<Tensor>& x) { return x ? plain(*x) : Tensor(); }
const float* data(const Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }

Tensor step_on_cpu(const Recurrence& r, const RecurrenceInputs& in, const Tensor& state, double scale) {
  const Tensor q = plain(in.q), k = plain(in.k), v = plain(in.v), log_alpha = plain(in.log_alpha), beta = plain(in.beta);
  const Tensor o = at::empty(v.sizes(), v.options());
  recurrence::StepParams p;
  p.pairs = q.size(0) * q.size(1);
  p.K = q.size(2);
  p.V = v.size(2);
  p.gate = r.gate;
  p.q = data(q);
  p.k = data(k);
  p.v = data(v);
  p.log_alpha = data(log_alpha);
  p.beta = data(beta);
  p.scale = static_cast<float>(scale);
  p.state = state.data_ptr<float>();
  p.o = o.data_ptr<float>();
  at::parallel_for(0, p.pairs, grain(p.K * p.V), [&](int64_t begin, int64_t end) {
    std::vector<float> workspace(static_cast<size_t>(p.K + 2 * p.V));
    recurrence::step_cpu(p, begin, end, workspace.data());
  });
  return o;
}

Tensor step_on_aten(const Recurrence& r, const RecurrenceInputs& in, const Tensor& state, double scale) {
  const Tensor q = plain(in.q) * scale, k = plain(in.k);
  Tensor u = plain(in.v);
  if (r.gate != Gate::kNone) {
    const Tensor alpha = plain(in.log_alpha).exp();
    state.mul_(r.gate == Gate::kScalar ? alpha.unsqueeze(-1).unsqueeze(-1) : alpha.unsqueeze(r.gate == Gate::kRow ? -1 : -2));
  }
  if (r.delta) u = (u - at::matmul(k.unsqueeze(-2), state).squeeze(-2)) * plain(in.beta).unsqueeze(-1);
  state.addcmul_(k.unsqueeze(-1), u.unsqueeze(-2));
  return at::matmul(q.unsqueeze(-2), state).squeeze(-2);
}

}  // namespace

Tensor portable_step(const Recurrence& r, const RecurrenceInputs& in, const Tensor& state, double scale) {
  return in.q.is_cpu() ? step_on_cpu(r, in, state, scale) : step_on_aten(r, in, state, scale);
}

}  // namespace cyfa::ops
