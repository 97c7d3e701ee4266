#include "cyfa/ops/dense.h"

#include <ATen/Parallel.h>

#include "cyfa/kernels/dense/gemv.h"
#include "cyfa/kernels/rows/rows.h"
#include "cyfa/ops/check.h"

namespace cyfa::ops {
namespace {

// Rows of a bf16 weight that are widened together: 16 MB at a width of 1,024.
constexpr int64_t kWidenRows = 4096;

// Weights a task of a step should read at least: 64 KB of bf16, some microseconds.
constexpr int64_t kTaskWeights = 1 << 15;

bool plain_fp32(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }
bool recorded(const at::Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad(); }
bool is_narrow(const at::Tensor& x, const at::Tensor& weight) {
  return plain_fp32(x) && weight.is_cpu() && weight.scalar_type() == at::kBFloat16;
}

at::Tensor widened_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const at::Tensor out = at::empty({rows.size(0), weight.size(0)}, x.options());
  for (int64_t begin = 0; begin < weight.size(0); begin += kWidenRows) {
    const int64_t count = std::min(kWidenRows, weight.size(0) - begin);
    at::Tensor part = out.narrow(1, begin, count);
    at::mm_out(part, rows, weight.narrow(0, begin, count).to(at::kFloat).t());
  }
  if (bias) out.add_(*bias);
  return out.view(shape);
}

void check_step(const at::Tensor& x, const LinearWeight& w) {
  constexpr const char* kOp = "linear_step";
  check::shape(kOp, "x", x, {{"B", -1}, {"in", -1}});
  check::shape(kOp, "weight", w.weight, {{"out", -1}, {"in", x.size(1)}});
  if (w.bias) check::shape(kOp, "bias", *w.bias, {{"out", w.weight.size(0)}});
}

bool has_kernel(const at::Tensor& x, const LinearWeight& w) {
  const at::ScalarType type = w.weight.scalar_type();
  return plain_fp32(x) && w.weight.is_cpu() && (type == at::kFloat || type == at::kBFloat16) && w.weight.is_contiguous();
}

at::Tensor swiglu_rows(const at::Tensor& gate, const at::Tensor& up) {
  const at::Tensor out = at::empty_like(gate);
  const float* from = gate.const_data_ptr<float>();
  const float* times = up.defined() ? up.const_data_ptr<float>() : nullptr;
  float* to = out.data_ptr<float>();
  at::parallel_for(0, gate.numel(), 16384, [&](int64_t begin, int64_t end) {
    rows::swiglu(end - begin, from + begin, times == nullptr ? nullptr : times + begin, to + begin);
  });
  return out;
}

// f(value, index in the last dimension) of every element of an fp32 tensor.
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

at::ScalarType activation_type(at::ScalarType weight, at::Device device) {
  return device.is_cpu() && weight == at::kBFloat16 ? at::kFloat : weight;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (!is_narrow(x, weight)) return at::linear(x, weight, bias);
  if (!recorded(x) && !recorded(weight)) return widened_linear(x, weight, bias);
  const at::Tensor y = at::linear(x.to(at::kBFloat16), weight).to(at::kFloat);
  return bias ? y + *bias : y;
}

std::vector<at::Tensor> linear_steps(const at::Tensor& x, const std::vector<LinearWeight>& weights) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> results;
  std::vector<dense::Gemv> products;
  std::vector<at::Tensor> keep;
  at::Tensor packed;
  if (plain_fp32(x) && x.dim() == 2) {
    packed = at::empty({dense::packed_floats(x.size(0), x.size(1))}, x.options());
    dense::pack_vectors(x.size(0), x.size(1), x.contiguous().const_data_ptr<float>(), packed.data_ptr<float>());
  }
  std::vector<int64_t> first = {0};  // of each product on one axis of all output rows
  for (const LinearWeight& w : weights) {
    check_step(x, w);
    if (!has_kernel(x, w)) {
      results.push_back(ops::linear(x, w.weight, w.bias));
      continue;
    }
    results.push_back(at::empty({x.size(0), w.weight.size(0)}, x.options()));
    dense::Gemv g;
    g.batch = x.size(0);
    g.in = x.size(1);
    g.out = w.weight.size(0);
    g.weight = w.weight.const_data_ptr();
    g.type = w.weight.scalar_type() == at::kFloat ? dense::WeightType::kF32 : dense::WeightType::kBf16;
    g.x = packed.const_data_ptr<float>();
    if (w.bias) {
      keep.push_back(w.bias->to(at::kFloat).contiguous());
      g.bias = keep.back().const_data_ptr<float>();
    }
    g.y = results.back().data_ptr<float>();
    products.push_back(g);
    first.push_back(first.back() + g.out);
  }
  if (products.empty()) return results;
  const cpu::Isa isa = cpu::best_isa();
  const int64_t grain = std::max<int64_t>(4, kTaskWeights / std::max<int64_t>(1, x.size(1)));
  at::parallel_for(0, first.back(), grain, [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < products.size(); ++i) {
      const int64_t from = std::max(begin, first[i]) - first[i];
      const int64_t to = std::min(end, first[i + 1]) - first[i];
      if (from < to) dense::gemv_cpu(products[i], from, to, isa);
    }
  });
  return results;
}

at::Tensor linear_step(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return linear_steps(x, {{weight, bias}}).front();
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!plain_fp32(x) || !plain_fp32(weight) || recorded(x) || recorded(weight)) {
    return at::rms_norm(x, weight.sizes(), weight.to(x.scalar_type()), eps);
  }
  const at::Tensor in = x.contiguous();
  const at::Tensor out = at::empty_like(in);
  const int64_t width = in.size(-1);
  const float* from = in.const_data_ptr<float>();
  const at::Tensor scale = weight.contiguous();
  float* to = out.data_ptr<float>();
  at::parallel_for(0, in.numel() / std::max<int64_t>(1, width), std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
    std::vector<float> rate(static_cast<size_t>(end - begin));
    rows::rms_norm(end - begin, width, from + begin * width, width, scale.const_data_ptr<float>(), static_cast<float>(eps), rate.data(), nullptr,
                   to + begin * width);
  });
  return out;
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  if (!plain_fp32(gate) || !plain_fp32(up) || recorded(gate) || recorded(up)) return at::silu(gate) * up;
  return swiglu_rows(gate.contiguous(), up.contiguous());
}

at::Tensor silu(const at::Tensor& x) { return !plain_fp32(x) || recorded(x) ? at::silu(x) : swiglu_rows(x.contiguous(), at::Tensor()); }

// Torch's vector and scalar code differ in the last bit, and which of them an element meets depends on the batch: hence loops of our own
// where nothing is recorded. There are few gates, so that they may be in double.
at::Tensor sigmoid_gate(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  if (!plain_fp32(wide) || recorded(wide)) return at::sigmoid(wide);
  return each(wide, [](double value, int64_t) { return 1.0 / (1.0 + std::exp(-value)); });
}

at::Tensor decay_gate(const at::Tensor& x, const at::Tensor& dt_bias, const at::Tensor& A_log) {
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

at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate) {
  if (!plain_fp32(x) || !plain_fp32(weight) || !plain_fp32(gate) || recorded(x) || recorded(weight) || recorded(gate)) {
    return at::rms_norm(x, weight.sizes(), weight.to(x.scalar_type()), eps) * at::sigmoid(gate);
  }
  const at::Tensor in = x.contiguous();
  const at::Tensor by = gate.contiguous();
  const at::Tensor scale = weight.contiguous();
  const at::Tensor out = at::empty_like(in);
  const int64_t width = in.size(-1);
  const float* from = in.const_data_ptr<float>();
  const float* gates = by.const_data_ptr<float>();
  float* to = out.data_ptr<float>();
  at::parallel_for(0, in.numel() / std::max<int64_t>(1, width), std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
    rows::gated_rms_norm(end - begin, width, from + begin * width, scale.const_data_ptr<float>(), static_cast<float>(eps), gates + begin * width,
                         to + begin * width);
  });
  return out;
}

}  // namespace cyfa::ops
