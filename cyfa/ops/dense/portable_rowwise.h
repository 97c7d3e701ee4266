// Row-wise functions of the portable path, used by the chunk-wise passes of the recurrences and, where it has no CPU kernels, of
// cyclic_flow. The first two are one sweep of a CPU kernel (cyfa/kernels/rowwise) for fp32 on a CPU, and ATen otherwise.
#pragma once

#include <torch/types.h>

#include <optional>

namespace cyfa::ops {

// <a, b> over the last dimension.
at::Tensor row_dot(const at::Tensor& a, const at::Tensor& b);

// exp(sum_r - sum_s) for r >= s and 0 for r < s: [..., C, C] of type dtype, from sums [..., C] in double.
at::Tensor causal_decay(const at::Tensor& sum, at::ScalarType dtype);

// d(loss)/d(clock) [...] of rows x [..., M] that rotate with the clock as exp(-i 2 pi j clock / m), given their gradient grad_x.
at::Tensor clock_gradient(const at::Tensor& x, const at::Tensor& grad_x);

// RMSNorm over the last dimension, with a constant factor folded into its weight. Without a weight only the factor is applied.
class RowNorm {
 public:
  RowNorm(const std::optional<at::Tensor>& weight, double factor, double eps, at::ScalarType dtype);

  struct Rows {
    at::Tensor out;   // the result
    at::Tensor unit;  // x / rms(x); undefined without a weight, like rate
    at::Tensor rate;  // 1 / rms(x), [..., 1]
  };

  Rows forward(const at::Tensor& x) const;

  // Returns the gradient of x; overwrites `grad`. Adds the gradient of the original weight, without the factor, to grad_weight [K].
  at::Tensor backward(const Rows& rows, at::Tensor grad, const at::Tensor& grad_weight) const;

 private:
  at::Tensor weight_;  // weight times the factor; undefined: no norm
  double factor_, eps_;
};

}  // namespace cyfa::ops
