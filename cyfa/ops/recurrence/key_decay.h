// The forget gates of a segment's chunks as the passes over keys and values use them (cyfa/ops/recurrence/passes.h), and the gradient of
// the gates. Write D_ts for alpha_{s+1} .. alpha_t inside a chunk: one (NoKeyDecay), a number (ScalarKeyDecay) or one for each key
// dimension (PerKeyDecay). Everything is batched over n = lanes * heads and g chunks of C tokens. Products of gates are never divided and
// exponents are never positive.
#pragma once

#include <torch/types.h>

#include "cyfa/ops/recurrence/gated_pass.h"

namespace cyfa::ops {

class KeyDecay {
 public:
  virtual ~KeyDecay() = default;

  virtual at::Tensor from_start(const at::Tensor& x) const = 0;  // alpha_1 .. alpha_t x_t, [n, g, C, K]; may be x itself
  virtual at::Tensor to_end(const at::Tensor& y) const = 0;      // alpha_{t+1} .. alpha_C y_t; may be y itself
  // to = alpha_1 .. alpha_C from, states [n, K, V] over chunk c; `to` may be `from`.
  virtual void carry(int64_t c, const at::Tensor& from, at::Tensor to) const = 0;
  // For each x, [n, g, C, C]: x_t^T D_ts y_s for s <= t, else 0.
  virtual std::vector<at::Tensor> scores(const std::vector<at::Tensor>& x, const at::Tensor& y) const = 0;

  // Adjoints. Each takes the gradient of a result (and the result, which lies in memory as its gradient does), adds to the gradient of the
  // argument, and keeps the gates' share. No share is a difference of large ones: a pair (t, s) gives to gates s < u <= t and to no other.
  virtual void from_start_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_x) = 0;
  virtual void to_end_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_y) = 0;
  // grad_state goes from what chunk c made of `state` to `state`, in place.
  virtual void carry_backward(int64_t c, const at::Tensor& state, at::Tensor grad_state) = 0;
  // Every grad [n, g, C, C] is zero above the diagonal. A grad_x may be grad_y, and undefined where nobody wants it.
  virtual void scores_backward(const std::vector<at::Tensor>& grad, const std::vector<at::Tensor>& x, const at::Tensor& y,
                               const std::vector<at::Tensor>& grad_x, const at::Tensor& grad_y) = 0;
  virtual at::Tensor log_alpha_gradient() const = 0;  // shape of the gates; undefined where there are none
};

class NoKeyDecay final : public KeyDecay {
 public:
  at::Tensor from_start(const at::Tensor& x) const override { return x; }
  at::Tensor to_end(const at::Tensor& y) const override { return y; }
  void carry(int64_t c, const at::Tensor& from, at::Tensor to) const override;
  std::vector<at::Tensor> scores(const std::vector<at::Tensor>& x, const at::Tensor& y) const override;
  void from_start_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_x) override;
  void to_end_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_y) override;
  void carry_backward(int64_t c, const at::Tensor& state, at::Tensor grad_state) override;
  void scores_backward(const std::vector<at::Tensor>& grad, const std::vector<at::Tensor>& x, const at::Tensor& y,
                       const std::vector<at::Tensor>& grad_x, const at::Tensor& grad_y) override;
  at::Tensor log_alpha_gradient() const override { return {}; }
};

class ScalarKeyDecay final : public KeyDecay {
 public:
  ScalarKeyDecay(const at::Tensor& log_alpha, at::ScalarType dtype) : decay_(log_alpha, dtype) {}  // [n, g, C] in double

  at::Tensor from_start(const at::Tensor& x) const override;
  at::Tensor to_end(const at::Tensor& y) const override;
  void carry(int64_t c, const at::Tensor& from, at::Tensor to) const override;
  std::vector<at::Tensor> scores(const std::vector<at::Tensor>& x, const at::Tensor& y) const override;
  void from_start_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_x) override;
  void to_end_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_y) override;
  void carry_backward(int64_t c, const at::Tensor& state, at::Tensor grad_state) override;
  void scores_backward(const std::vector<at::Tensor>& grad, const std::vector<at::Tensor>& x, const at::Tensor& y,
                       const std::vector<at::Tensor>& grad_x, const at::Tensor& grad_y) override;
  at::Tensor log_alpha_gradient() const override { return gates_.log_alpha(); }

 private:
  ChunkDecay decay_;
  DecayGradient gates_;
};

// C is a power of two. Pairs (t, s) are taken by halves: at each level a stretch of 2h tokens has queries in its second half and keys in
// its first, and D_ts is what the query has seen of its half times what the key will see of its own: a matrix product. The last levels,
// blocks of 16 tokens, are one kernel for fp32 on a CPU.
class PerKeyDecay final : public KeyDecay {
 public:
  explicit PerKeyDecay(const at::Tensor& log_alpha);  // [n, g, C, K]

  at::Tensor from_start(const at::Tensor& x) const override;
  at::Tensor to_end(const at::Tensor& y) const override;
  void carry(int64_t c, const at::Tensor& from, at::Tensor to) const override;
  std::vector<at::Tensor> scores(const std::vector<at::Tensor>& x, const at::Tensor& y) const override;
  void from_start_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_x) override;
  void to_end_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_y) override;
  void carry_backward(int64_t c, const at::Tensor& state, at::Tensor grad_state) override;
  void scores_backward(const std::vector<at::Tensor>& grad, const std::vector<at::Tensor>& x, const at::Tensor& y,
                       const std::vector<at::Tensor>& grad_x, const at::Tensor& grad_y) override;
  at::Tensor log_alpha_gradient() const override { return grad_log_; }

  // For gates on the side of the values: alpha_1 .. alpha_C [n, g, K, 1], and its adjoint, d(loss)/d(log whole) [n, g, K].
  const at::Tensor& whole() const { return whole_; }
  void whole_backward(const at::Tensor& share);

  // z_t = sum over s <= t of weights_ts D_ts y_s, [n, g, C, K], for gates that lie on the side of the values. Its adjoint is
  // scores({grad_z}, y) for the weights and scores_backward({weights}, {grad_z}, y, {{}}, grad_y) for the rest.
  at::Tensor apply(const at::Tensor& weights, const at::Tensor& y) const;

 private:
  int64_t leaf() const;  // stretches of this many tokens are not halved

  at::Tensor alpha_, whole_, grad_log_;
};

}  // namespace cyfa::ops
