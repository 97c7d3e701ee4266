#include "cyfa/ops/recurrence/key_decay.h"

#include <ATen/Parallel.h>

#include "cyfa/kernels/key_decay/key_decay.h"
#include "cyfa/ops/common/grain.h"
#include "cyfa/ops/dense/portable_rowwise.h"

namespace cyfa::ops {
namespace {

using at::Tensor;

Tensor batched(const Tensor& x) { return x.flatten(0, 1); }  // [n, g, ...] -> [n * g, ...]

void add_to(Tensor& sum, const Tensor& x) {
  if (sum.defined()) {
    sum.add_(x);
  } else {
    sum = x;
  }
}

bool fp32_on_cpu(const Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

// `length` consecutive tokens, starting at `offset`, out of every `period` tokens (2h or a chunk).
struct Span {
  int64_t period, offset, length;
};

// The tokens of a span in x [n, g, C, K], which must be contiguous, as a view [stretches, length, K].
Tensor stretches_of(const Tensor& x, const Span& s) { return x.view({-1, s.period, x.size(-1)}).narrow(1, s.offset, s.length); }

const float* data(const Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }
float* mutable_data(const Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

// Distributes `count` pieces of `size` elements over threads. Inside a parallel task it is a plain call.
template <class F>
void over_pieces(int64_t count, int64_t size, const F& f) {
  at::parallel_for(0, count, grain(size), f);
}

// The same for the kernels. `compact` is [stretches, length, K], with adjacent rows of K elements.
template <class F>
void over_stretches(const Span& s, const Tensor& compact, const F& f) {
  const int64_t K = compact.size(2);
  const key_decay::Stretches stretches{s.period, s.offset, s.length, compact.stride(0) / K};
  over_pieces(compact.size(0), s.length * K, [&](int64_t begin, int64_t end) { f(stretches, begin, end, K); });
}

// Cumulative products in double: with equal gates, rounding errors in fp32 would all have the same sign and add up.
Tensor products_along(const Tensor& alpha) { return at::cumprod(alpha, 1, at::kDouble).to(alpha.scalar_type()); }

Tensor products_from_start(const Tensor& alpha) { return products_along(alpha); }

Tensor products_to_end(const Tensor& alpha) {
  const Tensor products = at::ones_like(alpha, at::MemoryFormat::Contiguous);
  const int64_t length = alpha.size(1);
  if (length > 1) products.narrow(1, 0, length - 1).copy_(products_along(alpha.narrow(1, 1, length - 1).flip(1)).flip(1));
  return products;
}

Tensor compact_like(const Tensor& x, const Span& s) {
  return at::empty({x.numel() / (s.period * x.size(-1)), s.length, x.size(-1)}, x.options());
}

Tensor scaled_from_start(const Span& s, const Tensor& x, const Tensor& alpha) {
  if (!fp32_on_cpu(x)) return stretches_of(x, s) * products_from_start(stretches_of(alpha, s));
  const Tensor out = compact_like(x, s);
  over_stretches(s, out, [&](const auto& stretches, int64_t begin, int64_t end, int64_t K) {
    key_decay::from_start(stretches, begin, end, K, data(x), data(alpha), mutable_data(out));
  });
  return out;
}

Tensor scaled_to_end(const Span& s, const Tensor& x, const Tensor& alpha) {
  if (!fp32_on_cpu(x)) return stretches_of(x, s) * products_to_end(stretches_of(alpha, s));
  const Tensor out = compact_like(x, s);
  over_stretches(s, out, [&](const auto& stretches, int64_t begin, int64_t end, int64_t K) {
    key_decay::to_end(stretches, begin, end, K, data(x), data(alpha), mutable_data(out));
  });
  return out;
}

// grad and out are [stretches, length, K]. grad_x may be undefined; out and grad_log may both be undefined.
void add_from_start(const Span& s, const Tensor& grad, const Tensor& out, const Tensor& alpha, const Tensor& grad_x,
                    const Tensor& grad_log) {
  if (!fp32_on_cpu(grad)) {
    if (grad_x.defined()) stretches_of(grad_x, s).addcmul_(grad, products_from_start(stretches_of(alpha, s)));
    if (grad_log.defined()) stretches_of(grad_log, s).add_((grad * out).flip(1).cumsum(1).flip(1));
    return;
  }
  over_stretches(s, grad, [&](const auto& stretches, int64_t begin, int64_t end, int64_t K) {
    key_decay::from_start_backward(stretches, begin, end, K, data(grad), data(out), data(alpha), mutable_data(grad_x),
                                   mutable_data(grad_log));
  });
}

void add_to_end(const Span& s, const Tensor& grad, const Tensor& out, const Tensor& alpha, const Tensor& grad_x, const Tensor& grad_log) {
  if (!fp32_on_cpu(grad)) {
    stretches_of(grad_x, s).addcmul_(grad, products_to_end(stretches_of(alpha, s)));
    if (s.length > 1) {
      const Span later{s.period, s.offset + 1, s.length - 1};
      stretches_of(grad_log, later).add_((grad * out).narrow(1, 0, s.length - 1).cumsum(1));
    }
    return;
  }
  over_stretches(s, grad, [&](const auto& stretches, int64_t begin, int64_t end, int64_t K) {
    key_decay::to_end_backward(stretches, begin, end, K, data(grad), data(out), data(alpha), mutable_data(grad_x), mutable_data(grad_log));
  });
}

// The halves of blocks of 2h tokens: queries in the second half, keys in the first.
Span queries(int64_t h) { return {2 * h, h, h}; }
Span keys(int64_t h) { return {2 * h, 0, h}; }

// The weights [n, g, C, C] of these query-key pairs, as a view [n * g, blocks of a chunk, h, h].
Tensor halves(const Tensor& weights, int64_t h) {
  const int64_t blocks = weights.size(-1) / (2 * h);
  return weights.view({-1, blocks, 2 * h, blocks, 2 * h}).diagonal(0, 1, 3).movedim(-1, 1).narrow(2, h, h).narrow(3, 0, h);
}

Tensor halves_copied(const Tensor& weights, int64_t h) { return halves(weights, h).reshape({-1, h, h}); }

// Calls f(offset of a block in the weights [n, g, C, C], offset of its first row in `like`) for all diagonal blocks of `size` tokens.
template <class F>
void over_blocks(int64_t size, const Tensor& like, const F& f) {
  const int64_t C = like.size(2);
  const int64_t K = like.size(3);
  const int64_t count = like.size(0) * like.size(1) * (C / size);
  over_pieces(count, size * size * K / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i * size;
      f(row * C + row % C, row * K);
    }
  });
}

// x_t^T y_s for all t and s; below, its gradients with respect to x (optional) and y.
Tensor pairs_of(const Products& products, const Tensor& x, const Tensor& y) {
  return products.product(batched(x), batched(y).transpose(1, 2)).unflatten(0, {y.size(0), y.size(1)});
}

void add_pair_gradients(const Products& products, const Tensor& grad, const Tensor& x, const Tensor& y, const Tensor& grad_x,
                        const Tensor& grad_y) {
  if (grad_x.defined()) products.add(batched(grad_x), batched(grad), batched(y));
  products.add(batched(grad_y), batched(grad).transpose(1, 2), batched(x));
}

Tensor exact_product(const Tensor& a, const Tensor& b) { return at::bmm(a, b); }
void add_exact_product(const Tensor& sum, const Tensor& a, const Tensor& b) { sum.baddbmm_(a, b); }

Tensor rounded(const Tensor& x) { return x.to(at::kBFloat16); }
Tensor bf16_product(const Tensor& a, const Tensor& b) { return at::bmm(rounded(a), rounded(b), at::kFloat); }
void add_bf16_product(const Tensor& sum, const Tensor& a, const Tensor& b) {
  Tensor out = sum;
  at::baddbmm_out(out, sum, rounded(a), rounded(b), at::kFloat);
}

}  // namespace

const Products kExactProducts{exact_product, add_exact_product};
const Products kBf16Products{bf16_product, add_bf16_product};

void NoKeyDecay::carry(int64_t /*c*/, const Tensor& from, Tensor to) const {
  if (!to.is_same(from)) to.copy_(from);
}

std::vector<Tensor> NoKeyDecay::scores(const std::vector<Tensor>& x, const Tensor& y) const {
  std::vector<Tensor> all;
  for (const Tensor& each : x) all.push_back(pairs_of(products_, each, y).tril_());
  return all;
}

void NoKeyDecay::from_start_backward(const Tensor& grad, const Tensor& /*result*/, const Tensor& grad_x) { grad_x.add_(grad); }

void NoKeyDecay::to_end_backward(const Tensor& grad, const Tensor& /*result*/, const Tensor& grad_y) { grad_y.add_(grad); }

void NoKeyDecay::carry_backward(int64_t /*c*/, const Tensor& /*state*/, Tensor /*grad_state*/) {}

void NoKeyDecay::scores_backward(const std::vector<Tensor>& grad, const std::vector<Tensor>& x, const Tensor& y,
                                 const std::vector<Tensor>& grad_x, const Tensor& grad_y) {
  for (size_t i = 0; i < x.size(); ++i) add_pair_gradients(products_, grad[i], x[i], y, grad_x[i], grad_y);
}

Tensor ScalarKeyDecay::from_start(const Tensor& x) const { return x * decay_.from_start; }

Tensor ScalarKeyDecay::to_end(const Tensor& y) const { return y * decay_.to_end; }

void ScalarKeyDecay::carry(int64_t c, const Tensor& from, Tensor to) const { at::mul_out(to, from, decay_.whole.select(1, c)); }

std::vector<Tensor> ScalarKeyDecay::scores(const std::vector<Tensor>& x, const Tensor& y) const {
  std::vector<Tensor> all;
  for (const Tensor& each : x) all.push_back(pairs_of(products_, each, y).mul_(decay_.between));
  return all;
}

void ScalarKeyDecay::from_start_backward(const Tensor& grad, const Tensor& result, const Tensor& grad_x) {
  add_to(gates_.from_start, row_dot(grad, result));
  grad_x.addcmul_(grad, decay_.from_start);
}

void ScalarKeyDecay::to_end_backward(const Tensor& grad, const Tensor& result, const Tensor& grad_y) {
  add_to(gates_.to_end, row_dot(grad, result));
  grad_y.addcmul_(grad, decay_.to_end);
}

void ScalarKeyDecay::carry_backward(int64_t c, const Tensor& state, Tensor grad_state) {
  grad_state.mul_(decay_.whole.select(1, c));
  if (!gates_.whole.defined()) gates_.whole = at::zeros({state.size(0), decay_.whole.size(1)}, state.options());
  gates_.whole.select(1, c).add_(row_dot(state, grad_state).sum(-1));
}

void ScalarKeyDecay::whole_backward(const Tensor& share) { add_to(gates_.whole, share); }

void ScalarKeyDecay::scores_backward(const std::vector<Tensor>& grad, const std::vector<Tensor>& x, const Tensor& y,
                                     const std::vector<Tensor>& grad_x, const Tensor& grad_y) {
  for (size_t i = 0; i < x.size(); ++i) {
    const Tensor decayed = grad[i] * decay_.between;
    add_to(gates_.pairs, pairs_of(products_, x[i], y).mul_(decayed).tril_(-1));
    add_pair_gradients(products_, decayed, x[i], y, grad_x[i], grad_y);
  }
}

PerKeyDecay::PerKeyDecay(const Tensor& log_alpha) : grad_log_(at::zeros(log_alpha.sizes(), log_alpha.options())) {
  const Tensor exact =
      (log_alpha.is_cpu() ? log_alpha : log_alpha.to(at::kDouble)).exp().contiguous();  // fp32 exp on a GPU is less accurate
  alpha_ = exact.to(log_alpha.scalar_type());
  whole_ = exact.prod(2).unsqueeze(-1).to(log_alpha.scalar_type());
}

int64_t PerKeyDecay::leaf() const { return fp32_on_cpu(alpha_) ? std::min(alpha_.size(2), key_decay::kMaxBlock) : 1; }

Tensor PerKeyDecay::from_start(const Tensor& x) const {
  const int64_t C = alpha_.size(2);
  return scaled_from_start({C, 0, C}, x, alpha_).view_as(alpha_);
}

Tensor PerKeyDecay::to_end(const Tensor& y) const {
  const int64_t C = alpha_.size(2);
  return scaled_to_end({C, 0, C}, y, alpha_).view_as(alpha_);
}

void PerKeyDecay::carry(int64_t c, const Tensor& from, Tensor to) const { at::mul_out(to, from, whole_.select(1, c)); }

void PerKeyDecay::from_start_backward(const Tensor& grad, const Tensor& result, const Tensor& grad_x) {
  const int64_t C = alpha_.size(2);
  add_from_start({C, 0, C}, batched(grad), batched(result), alpha_, grad_x, grad_log_);
}

void PerKeyDecay::to_end_backward(const Tensor& grad, const Tensor& result, const Tensor& grad_y) {
  const int64_t C = alpha_.size(2);
  add_to_end({C, 0, C}, batched(grad), batched(result), alpha_, grad_y, grad_log_);
}

void PerKeyDecay::carry_backward(int64_t c, const Tensor& state, Tensor grad_state) {
  grad_state.mul_(whole_.select(1, c));
  grad_log_.select(1, c).add_(row_dot(state, grad_state).unsqueeze(1));
}

void PerKeyDecay::whole_backward(const Tensor& share) { grad_log_.add_(share.unsqueeze(2)); }

std::vector<Tensor> PerKeyDecay::scores(const std::vector<Tensor>& x, const Tensor& y) const {
  const int64_t C = alpha_.size(2);
  const int64_t K = alpha_.size(3);
  std::vector<Tensor> all;
  for (size_t i = 0; i < x.size(); ++i) all.push_back(at::zeros({y.size(0), y.size(1), C, C}, y.options()));
  for (int64_t h = C / 2; h >= leaf(); h /= 2) {
    const Tensor key = scaled_to_end(keys(h), y, alpha_).transpose(1, 2);
    for (size_t i = 0; i < x.size(); ++i) {
      const Tensor block = halves(all[i], h);
      block.copy_(at::bmm(scaled_from_start(queries(h), x[i], alpha_), key).view(block.sizes()));
    }
  }
  for (size_t i = 0; i < x.size(); ++i) {
    if (leaf() == 1) {
      all[i].diagonal(0, 2, 3).copy_(row_dot(x[i], y));
      continue;
    }
    over_blocks(leaf(), y, [&](int64_t block, int64_t row) {
      key_decay::block_scores(leaf(), K, data(x[i]) + row, data(y) + row, data(alpha_) + row, mutable_data(all[i]) + block, C);
    });
  }
  return all;
}

Tensor PerKeyDecay::apply(const Tensor& weights, const Tensor& y) const {
  const int64_t C = alpha_.size(2);
  const int64_t K = alpha_.size(3);
  const Tensor z = leaf() == 1 ? y * weights.diagonal(0, 2, 3).unsqueeze(-1) : at::zeros(y.sizes(), y.options());
  for (int64_t h = C / 2; h >= leaf(); h /= 2) {
    const Tensor key = scaled_to_end(keys(h), y, alpha_);
    add_from_start(queries(h), at::bmm(halves_copied(weights, h), key), {}, alpha_, z, {});
  }
  if (leaf() == 1) return z;
  over_blocks(leaf(), y, [&](int64_t block, int64_t row) {
    key_decay::block_apply(leaf(), K, data(weights) + block, C, data(y) + row, data(alpha_) + row, mutable_data(z) + row);
  });
  return z;
}

void PerKeyDecay::scores_backward(const std::vector<Tensor>& grad, const std::vector<Tensor>& x, const Tensor& y,
                                  const std::vector<Tensor>& grad_x, const Tensor& grad_y) {
  const int64_t C = alpha_.size(2);
  const int64_t K = alpha_.size(3);
  for (int64_t h = C / 2; h >= leaf(); h /= 2) {
    const Tensor key = scaled_to_end(keys(h), y, alpha_);
    const Tensor grad_key = at::zeros(key.sizes(), key.options());
    for (size_t i = 0; i < x.size(); ++i) {
      const Tensor weights = halves_copied(grad[i], h);
      const Tensor query = scaled_from_start(queries(h), x[i], alpha_);
      add_from_start(queries(h), at::bmm(weights, key), query, alpha_, grad_x[i], grad_log_);
      grad_key.baddbmm_(weights.transpose(1, 2), query);
    }
    add_to_end(keys(h), grad_key, key, alpha_, grad_y, grad_log_);
  }
  for (size_t i = 0; i < x.size(); ++i) {
    if (leaf() == 1) {
      const Tensor weights = grad[i].diagonal(0, 2, 3).unsqueeze(-1);
      if (grad_x[i].defined()) grad_x[i].addcmul_(weights, y);
      grad_y.addcmul_(weights, x[i]);
      continue;
    }
    over_blocks(leaf(), y, [&](int64_t block, int64_t row) {
      float* readers = grad_x[i].defined() ? mutable_data(grad_x[i]) + row : nullptr;
      key_decay::block_backward(leaf(), K, data(grad[i]) + block, C, data(x[i]) + row, data(y) + row, data(alpha_) + row, readers,
                                mutable_data(grad_y) + row, mutable_data(grad_log_) + row);
    });
  }
}

}  // namespace cyfa::ops
