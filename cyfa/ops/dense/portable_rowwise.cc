// See portable_rowwise.h.
#include "cyfa/ops/dense/portable_rowwise.h"

#include <ATen/Parallel.h>

#include <limits>
#include <numbers>

#include "cyfa/kernels/rowwise/rowwise.h"
#include "cyfa/ops/common/grain.h"

namespace cyfa::ops {
namespace {

bool fp32_on_cpu(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

// An [..., X] tensor as rows at equal distances, as the kernels need it; copied if the strides do not allow that.
struct Rows {
  at::Tensor keep;
  const float* data;
  int64_t count, width, stride;

  explicit Rows(const at::Tensor& x) : keep(x), width(x.size(-1)) {
    count = width > 0 ? x.numel() / width : 0;
    bool even = x.dim() >= 2 && (x.stride(-1) == 1 || width == 1);
    int64_t distance = even ? x.stride(-2) * x.size(-2) : 0;
    for (int64_t d = x.dim() - 3; even && d >= 0; --d) {
      even = x.size(d) == 1 || x.stride(d) == distance;
      distance *= x.size(d);
    }
    if (!even) keep = x.contiguous();
    stride = even ? keep.stride(-2) : width;
    data = keep.const_data_ptr<float>();
  }
};

// Splits rows over threads; a plain call inside a task of run_tasks, which has one thread.
template <class F>
void over_rows(const Rows& rows, const F& f) {
  at::parallel_for(0, rows.count, grain(rows.width), f);
}

at::IntArrayRef without_last(const at::Tensor& x) { return x.sizes().slice(0, static_cast<size_t>(x.dim()) - 1); }

}  // namespace

at::Tensor row_dot(const at::Tensor& a, const at::Tensor& b) {
  if (!fp32_on_cpu(a)) return at::sum(a * b, -1);
  const Rows x(a);
  const Rows y(b);
  const at::Tensor out = at::empty(without_last(a), a.options());
  float* to = out.data_ptr<float>();
  over_rows(x, [&](int64_t begin, int64_t end) {
    rowwise::dot(end - begin, x.width, x.data + begin * x.stride, x.stride, y.data + begin * y.stride, y.stride, to + begin);
  });
  return out;
}

at::Tensor causal_decay(const at::Tensor& sum, at::ScalarType dtype) {
  const int64_t C = sum.size(-1);
  if (sum.is_cpu() && dtype == at::kFloat && sum.is_contiguous()) {
    std::vector<int64_t> shape = sum.sizes().vec();
    shape.push_back(C);
    const at::Tensor out = at::empty(shape, sum.options().dtype(dtype));
    const double* from = sum.const_data_ptr<double>();
    float* to = out.data_ptr<float>();
    at::parallel_for(0, sum.numel() / C, grain(C * C), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) rowwise::causal_differences(C, from + i * C, to + i * C * C);
    });
    return at::exp_(const_cast<at::Tensor&>(out));
  }
  const at::Tensor future = at::ones({C, C}, sum.options().dtype(at::kBool)).triu_(1);
  return (sum.unsqueeze(-1) - sum.unsqueeze(-2)).masked_fill_(future, -std::numeric_limits<double>::infinity()).to(dtype).exp_();
}

at::Tensor clock_gradient(const at::Tensor& x, const at::Tensor& grad_x) {
  const int64_t pairs = x.size(-1) / 2;
  // x_j rotates as exp(-i f_j clock), so dx_j / dclock = -i f_j x_j and the gradient is <grad_x, -i f x> over the real coordinates.
  const at::Tensor rate = at::arange(pairs, x.options()).mul_(2 * std::numbers::pi / static_cast<double>(2 * pairs - 1));
  const at::Tensor z = x.unflatten(-1, {pairs, 2});
  const at::Tensor g = grad_x.unflatten(-1, {pairs, 2});
  return at::sum((z.select(-1, 1) * g.select(-1, 0) - z.select(-1, 0) * g.select(-1, 1)) * rate, -1);
}

RowNorm::RowNorm(const std::optional<at::Tensor>& weight, double factor, double eps, at::ScalarType dtype) : factor_(factor), eps_(eps) {
  if (weight) weight_ = weight->to(dtype) * factor;
}

RowNorm::Rows RowNorm::forward(const at::Tensor& x) const {
  Rows out;
  if (!weight_.defined()) {
    out.out = factor_ == 1.0 ? x : x * factor_;
    return out;
  }
  // The clamp keeps the rate of padding rows finite.
  out.rate = (x * x).mean(-1, true).add_(eps_).clamp_min_(std::numeric_limits<float>::min()).rsqrt_();
  out.unit = x * out.rate;
  out.out = out.unit * weight_;
  return out;
}

at::Tensor RowNorm::backward(const Rows& rows, at::Tensor grad, const at::Tensor& grad_weight) const {
  if (!weight_.defined()) return factor_ == 1.0 ? grad : grad.mul_(factor_);
  const at::Tensor shared = rows.unit * grad;
  grad_weight.add_(shared.flatten(0, -2).sum(0), factor_);
  const at::Tensor along = at::matmul(shared, weight_).div_(static_cast<double>(grad.size(-1))).unsqueeze(-1);
  return grad.mul_(weight_).addcmul_(rows.unit, along, -1).mul_(rows.rate);
}

}  // namespace cyfa::ops
