// The forget gates of a segment's chunks, as used by the passes over keys and values (cyfa/ops/recurrence/passes.h), and their gradient.
// D_ts denotes alpha_{s+1} .. alpha_t inside a chunk: 1 (NoKeyDecay), a scalar (ScalarKeyDecay) or a vector with one element per key
// dimension (PerKeyDecay). Everything is batched over n = lanes * heads and g chunks of C tokens. Products of gates are never divided, and
// exponents are never positive.
#pragma once

#include <torch/types.h>

#include "cyfa/ops/recurrence/gated_pass.h"

namespace cyfa::ops {

// Batched matrix products [batch, rows, inner] x [batch, inner, columns].
struct Products {
  at::Tensor (*product)(const at::Tensor& a, const at::Tensor& b);
  void (*add)(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);  // sum += a b
};
extern const Products kExactProducts;  // in the type of the operands
extern const Products kBf16Products;   // operands rounded to bf16, sums and results in fp32; on a GPU

// Interface of the three kinds of decay.
class KeyDecay {
 public:
  virtual ~KeyDecay() = default;

  virtual at::Tensor from_start(const at::Tensor& x) const = 0;  // alpha_1 .. alpha_t x_t, [n, g, C, K]; may be x itself
  virtual at::Tensor to_end(const at::Tensor& y) const = 0;      // alpha_{t+1} .. alpha_C y_t; may be y itself
  // to = alpha_1 .. alpha_C from: decays states [n, K, V] over chunk c; `to` may alias `from`.
  virtual void carry(int64_t c, const at::Tensor& from, at::Tensor to) const = 0;
  // For each x, [n, g, C, C]: x_t^T D_ts y_s for s <= t, else 0.
  virtual std::vector<at::Tensor> scores(const std::vector<at::Tensor>& x, const at::Tensor& y) const = 0;

  // Adjoints. Each takes the gradient of a result (and the result itself, with the same strides), adds to the gradient of the argument, and
  // accumulates the contribution to the gates. No contribution is a difference of large numbers: a pair (t, s) contributes to the gates u
  // with s < u <= t and to no others.
  virtual void from_start_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_x) = 0;
  virtual void to_end_backward(const at::Tensor& grad, const at::Tensor& result, const at::Tensor& grad_y) = 0;
  // Propagates grad_state in place from the end of chunk c to its start, where `state` is the state at the start.
  virtual void carry_backward(int64_t c, const at::Tensor& state, at::Tensor grad_state) = 0;
  // Every grad [n, g, C, C] is zero above the diagonal. A grad_x may alias grad_y, and is undefined if it is not needed.
  virtual void scores_backward(const std::vector<at::Tensor>& grad, const std::vector<at::Tensor>& x, const at::Tensor& y,
                               const std::vector<at::Tensor>& grad_x, const at::Tensor& grad_y) = 0;
  virtual at::Tensor log_alpha_gradient() const = 0;  // shape of the gates; undefined if there are none

  // For passes over all chunks at once, in place of carry: alpha_1 .. alpha_C of every chunk, [n, g, 1, 1] or [n, g, K, 1], undefined if
  // there are no gates; and its adjoint, which takes d(loss)/d(log whole), [n, g] or [n, g, K].
  virtual at::Tensor whole() const = 0;
  virtual void whole_backward(const at::Tensor& share) = 0;
};

// No gates.
class NoKeyDecay final : public KeyDecay {
 public:
  explicit NoKeyDecay(const Products& products = kExactProducts) : products_(products) {}

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
  at::Tensor whole() const override { return {}; }
  void whole_backward(const at::Tensor& /*share*/) override {}

 private:
  const Products& products_;
};

// One gate per token.
class ScalarKeyDecay final : public KeyDecay {
 public:
  // log_alpha [n, g, C] in double.
  ScalarKeyDecay(const at::Tensor& log_alpha, at::ScalarType dtype, const Products& products = kExactProducts)
      : products_(products), decay_(log_alpha, dtype) {}

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
  at::Tensor whole() const override { return decay_.whole; }
  void whole_backward(const at::Tensor& share) override;

 private:
  const Products& products_;
  ChunkDecay decay_;
  DecayGradient gates_;
};

// C is a power of two. Pairs (t, s) are processed by recursive halving: at each level, a block of 2h tokens has its queries in the second
// half and its keys in the first. D_ts is the decay from the middle of the block to the query times the decay from the key to the middle,
// so each level is a matrix product. For fp32 on a CPU, one kernel handles the last levels, blocks of 16 tokens.
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

  at::Tensor whole() const override { return whole_; }
  void whole_backward(const at::Tensor& share) override;

  // For gates on the value side: z_t = sum over s <= t of weights_ts D_ts y_s, [n, g, C, K]. Its adjoint is scores({grad_z}, y) for the
  // weights and scores_backward({weights}, {grad_z}, y, {{}}, grad_y) for y and the gates.
  at::Tensor apply(const at::Tensor& weights, const at::Tensor& y) const;

 private:
  int64_t leaf() const;  // block size at which the halving stops

  at::Tensor alpha_, whole_, grad_log_;
};

}  // namespace cyfa::ops
