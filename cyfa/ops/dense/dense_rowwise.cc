// The row-wise and element-wise functions of dense.h: kernels with their own gradients if there are any (rowwise.h), otherwise ATen.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/once_differentiable.h"
#include "cyfa/ops/dense/dense.h"
#include "cyfa/ops/dense/rowwise.h"

namespace cyfa::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<at::Tensor> given(const at::Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; }
bool recorded(const at::Tensor& x) { return at::GradMode::is_enabled() && x.defined() && x.requires_grad(); }
bool plain_fp32(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps,
                            const std::optional<at::Tensor>& gate) {
    const at::Tensor by = gate.value_or(at::Tensor());
    const row_kernels::Norm out = row_kernels::norm(x, weight, eps, by);
    ctx->save_for_backward({x, weight, by, out.rate});
    return out.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const row_kernels::NormGrads out = row_kernels::norm_backward(saved[0], saved[1], saved[2], saved[3], grads[0]);
    return once_differentiable("rms_norm", {out.x, out.weight.to(saved[1].scalar_type()), at::Tensor(), out.gate}, saved, grads);
  }
};

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const std::optional<at::Tensor>& up) {
    const at::Tensor times = up.value_or(at::Tensor());
    ctx->save_for_backward({gate, times});
    return row_kernels::swiglu(gate, times);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [gate, up] = row_kernels::swiglu_backward(saved[0], saved[1], grads[0]);
    return once_differentiable("swiglu", {gate, up}, saved, grads);
  }
};

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate) {
  if (recorded(x) || recorded(weight) || recorded(gate)) return NormFunction::apply(x, weight, eps, given(gate));
  return row_kernels::norm(x, weight, eps, gate).y;
}

// f(value, index in the last dimension) for every element of an fp32 tensor.
template <class F>
at::Tensor each(const at::Tensor& x, const F& f) {
  const at::Tensor in = x.contiguous();
  const at::Tensor out = at::empty_like(in);
  const int64_t width = std::max<int64_t>(1, in.dim() == 0 ? 1 : in.size(-1));
  const float* from = in.const_data_ptr<float>();
  float* to = out.data_ptr<float>();
  at::parallel_for(0, in.numel(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = static_cast<float>(f(static_cast<double>(from[i]), i % width));
  });
  return out;
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const WithoutAutocast plain_types;
  if (row_kernels::norm_takes(x)) return norm(x, weight, eps, at::Tensor());
  return at::rms_norm(x, weight.sizes(), weight.to(x.scalar_type()), eps);
}

at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate) {
  const WithoutAutocast plain_types;
  if (row_kernels::norm_takes(x) && gate.scalar_type() == x.scalar_type()) return norm(x, weight, eps, gate);
  return at::rms_norm(x, weight.sizes(), weight.to(x.scalar_type()), eps) * at::sigmoid(gate);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const WithoutAutocast plain_types;
  if (!row_kernels::swiglu_takes(gate) || up.scalar_type() != gate.scalar_type()) return at::silu(gate) * up;
  return recorded(gate) || recorded(up) ? SwigluFunction::apply(gate, given(up)) : row_kernels::swiglu(gate, up);
}

at::Tensor silu(const at::Tensor& x) {
  const WithoutAutocast plain_types;
  if (!row_kernels::swiglu_takes(x)) return at::silu(x);
  return recorded(x) ? SwigluFunction::apply(x, std::nullopt) : row_kernels::swiglu(x, at::Tensor());
}

// Torch's vectorised and scalar loops differ in the last bit, and which one computes an element depends on the batch. So the gates have
// their own loops if no gradient is recorded. There are few gates, so double precision is affordable.
at::Tensor sigmoid_gate(const at::Tensor& x) {
  const WithoutAutocast plain_types;
  const at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  if (!plain_fp32(wide) || recorded(wide)) return at::sigmoid(wide);
  return each(wide, [](double value, int64_t) { return 1.0 / (1.0 + std::exp(-value)); });
}

at::Tensor decay_gate(const at::Tensor& x, const at::Tensor& dt_bias, const at::Tensor& A_log) {
  const WithoutAutocast plain_types;
  const at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  if (!plain_fp32(wide) || recorded(wide) || recorded(dt_bias) || recorded(A_log)) {
    return at::softplus(wide + dt_bias.to(wide.scalar_type())) * -at::exp(A_log.to(wide.scalar_type()));
  }
  const at::Tensor shift = dt_bias.to(at::kDouble).contiguous(), rate = A_log.to(at::kDouble).exp().contiguous();
  const double* shifts = shift.const_data_ptr<double>();
  const double* rates = rate.const_data_ptr<double>();
  return each(wide, [&](double value, int64_t h) {
    const double a = value + shifts[h];
    return -rates[h] * (std::max(a, 0.0) + std::log1p(std::exp(-std::abs(a))));
  });
}

}  // namespace cyfa::ops
