// One token of a recurrence for a batch of states, in place. The CPU kernel on every core; elsewhere a few ATen calls.
#include <ATen/Parallel.h>

#include <cmath>

#include "cyfa/kernels/recurrence/step.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/recurrence/impl.h"

namespace cyfa::ops {
namespace {

using at::Tensor;

std::string step_name(const Recurrence& r) { return std::string(r.op) + "_step"; }

void check_step(const Recurrence& r, const RecurrenceInputs& in, const Tensor& state) {
  const std::string name = step_name(r);
  const char* op = name.c_str();
  check::shape(op, "q", in.q, {{"B", -1}, {"H", -1}, {"K", -1}});
  const int64_t B = in.q.size(0);
  const int64_t H = in.q.size(1);
  const int64_t K = in.q.size(2);
  check::shape(op, "k", in.k, {{"B", B}, {"H", H}, {"K", K}});
  check::shape(op, "v", in.v, {{"B", B}, {"H", H}, {"V", -1}});
  const int64_t V = in.v.size(2);
  check::widths(op, H, K, V);
  const Tensor log_alpha = in.log_alpha.value_or(Tensor());
  const Tensor beta = in.beta.value_or(Tensor());
  switch (r.gate) {
    case Gate::kNone: break;
    case Gate::kScalar: check::shape(op, "log_alpha", log_alpha, {{"B", B}, {"H", H}}); break;
    case Gate::kRow: check::shape(op, "log_alpha", log_alpha, {{"B", B}, {"H", H}, {"K", K}}); break;
    case Gate::kColumn: check::shape(op, "log_alpha", log_alpha, {{"B", B}, {"H", H}, {"V", V}}); break;
  }
  if (r.delta) check::shape(op, "beta", beta, {{"B", B}, {"H", H}});
  check::shape(op, "state", state, {{"B", B}, {"H", H}, {"K", K}, {"V", V}});
  check::same_dtype(op, "state", state, "states", at::kFloat);
  if (!state.is_contiguous()) check::fail(op, "state is a strided view, wanted a contiguous tensor (it is updated in place)");
  for (const auto& [argument, x] : {std::pair<const char*, const Tensor&>{"q", in.q},
                                    {"k", in.k},
                                    {"v", in.v},
                                    {"log_alpha", log_alpha},
                                    {"beta", beta},
                                    {"state", state}}) {
    if (!x.defined()) continue;
    check::floating(op, argument, x);
    check::same_device(op, argument, x, "q", in.q.device());
  }
  if (log_alpha.defined()) check::log_alpha(op, log_alpha);
}

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
  at::parallel_for(0, p.pairs, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> workspace(static_cast<size_t>(p.K + 2 * p.V));
    recurrence::step_cpu(p, begin, end, workspace.data());
  });
  return o;
}

Tensor step_on_aten(const Recurrence& r, const RecurrenceInputs& in, const Tensor& state, double scale) {
  const Tensor q = plain(in.q) * scale, k = plain(in.k);
  Tensor u = plain(in.v);
  if (r.gate != Gate::kNone) {
    const Tensor alpha = plain(in.log_alpha).exp_();
    state.mul_(r.gate == Gate::kScalar ? alpha.unsqueeze(-1).unsqueeze(-1) : alpha.unsqueeze(r.gate == Gate::kRow ? -1 : -2));
  }
  if (r.delta) u = (u - at::matmul(k.unsqueeze(-2), state).squeeze(-2)) * plain(in.beta).unsqueeze(-1);
  state.addcmul_(k.unsqueeze(-1), u.unsqueeze(-2));
  return at::matmul(q.unsqueeze(-2), state).squeeze(-2);
}

}  // namespace

Tensor step_recurrence(const Recurrence& r, RecurrenceInputs in, const Tensor& state, const RecurrenceOptions& options) {
  const at::NoGradGuard no_grad;
  spread_fixed_gate(r, in, 3);
  check_step(r, in, state);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(in.q.size(2))));
  check::scale(step_name(r).c_str(), scale);
  if (in.q.is_meta()) return at::empty(in.v.sizes(), in.v.options());
  const Tensor o = in.q.is_cpu() ? step_on_cpu(r, in, state, scale) : step_on_aten(r, in, state, scale);
  return o.to(in.v.scalar_type());
}

}  // namespace cyfa::ops
