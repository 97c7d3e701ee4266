// Row-wise pieces of the portable path: one sweep of a CPU kernel for fp32 on a CPU (cyfa/kernels/rowwise), ATen for the rest.
#pragma once

#include <torch/types.h>

#include <optional>

namespace cyfa::ops {

// <a, b> over the last dimension.
at::Tensor row_dot(const at::Tensor& a, const at::Tensor& b);

// exp(sum_r - sum_s) for r >= s and 0 for r < s: [..., C, C] of type dtype from sums [..., C] in double.
at::Tensor causal_decay(const at::Tensor& sum, at::ScalarType dtype);

// d(loss)/d(clock) of rows x [..., M] that turn with the clock as exp(-i 2 pi j clock / m), given their gradient: [...].
at::Tensor clock_gradient(const at::Tensor& x, const at::Tensor& grad_x);

// RMSNorm over the last dimension with a factor folded into its weight; without a weight, the factor alone.
class RowNorm {
 public:
  RowNorm(const std::optional<at::Tensor>& weight, double factor, double eps, at::ScalarType dtype);

  struct Rows {
    at::Tensor out;   // what the passes use
    at::Tensor unit;  // x / rms(x)
    at::Tensor rate;  // 1 / rms(x), [..., 1]
  };

  // Leaves `unit` out unless it is asked for.
  Rows forward(const at::Tensor& x, bool for_backward) const;

  // The gradient of x; takes `grad` over. Adds the gradient of the weight as it was given to grad_weight [K].
  at::Tensor backward(const Rows& rows, at::Tensor grad, const at::Tensor& grad_weight) const;

 private:
  at::Tensor weight_;  // times the factor; undefined: no norm
  double factor_, eps_;
};

}  // namespace cyfa::ops
