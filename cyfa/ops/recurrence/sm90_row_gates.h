// Gates per dimension inside the chunks of the sm90 backend (cyfa/ops/recurrence/sm90.cc), by the kernels of
// cyfa/kernels/recurrence/sm90/row_gates_sm90.h.
#pragma once

#include "cyfa/ops/recurrence/key_decay.h"

namespace cyfa::ops {

// PerKeyDecay for fp32 tensors on Hopper, with chunks of 64 tokens and widths that are multiples of 64. Pairs of tokens are matrix products
// of operands rounded to bf16. Arguments are contiguous.
class Sm90RowGates final : public KeyDecay {
 public:
  explicit Sm90RowGates(const at::Tensor& log_alpha);  // [n, g, C, K]

  at::Tensor from_start(const at::Tensor& x) const override;
  at::Tensor to_end(const at::Tensor& y) const override;
  void carry(int64_t c, const at::Tensor& from, at::Tensor to) const override;
  std::vector<at::Tensor> scores(const std::vector<at::Tensor>& x, const at::Tensor& y) const override;  // of one or two x
  void from_start_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_x) override;
  void to_end_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_y) override;
  void carry_backward(int64_t c, const at::Tensor& state, at::Tensor grad_state) override;
  void scores_backward(const std::vector<at::Tensor>& grad, const std::vector<at::Tensor>& x, const at::Tensor& y,
                       const std::vector<at::Tensor>& grad_x, const at::Tensor& grad_y) override;
  at::Tensor log_alpha_gradient() const override { return grad_log_; }
  at::Tensor whole() const override { return whole_; }
  void whole_backward(const at::Tensor& share) override;

  at::Tensor apply(const at::Tensor& weights, const at::Tensor& y) const;  // as PerKeyDecay's

 private:
  at::Tensor alpha_, whole_, grad_log_;
};

}  // namespace cyfa::ops
