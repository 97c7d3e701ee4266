#include "cyfa/ops/recurrence/sm90_row_gates.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "cyfa/kernels/recurrence/sm90/row_gates_sm90.h"
#include "cyfa/ops/dense/portable_rowwise.h"

namespace cyfa::ops {
namespace {

using at::Tensor;
using recurrence::GateSide;

const float* data(const Tensor& x) { return x.const_data_ptr<float>(); }
float* mutable_data(const Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

int64_t chunks_of(const Tensor& x) { return x.size(0) * x.size(1); }

Tensor gated(GateSide side, const Tensor& alpha, const Tensor& x) {
  const Tensor out = at::empty(x.sizes(), x.options());
  C10_CUDA_CHECK(recurrence::gated_sm90(side, chunks_of(x), x.size(3), data(alpha), data(x.contiguous()), mutable_data(out),
                                        c10::cuda::getCurrentCUDAStream()));
  return out;
}

void gated_backward(GateSide side, const Tensor& alpha, const Tensor& grad, const Tensor& result, const Tensor& grad_x,
                    const Tensor& grad_log) {
  C10_CUDA_CHECK(recurrence::gated_backward_sm90(side, chunks_of(grad_x), grad_x.size(3), data(alpha), data(grad.contiguous()),
                                                 data(result.contiguous()), mutable_data(grad_x), mutable_data(grad_log),
                                                 c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

Sm90RowGates::Sm90RowGates(const Tensor& log_alpha) {
  const Tensor exact = log_alpha.contiguous().to(at::kDouble).exp_();  // fp32 exp on a GPU is less accurate
  alpha_ = exact.to(at::kFloat);
  whole_ = exact.prod(2).unsqueeze(-1).to(at::kFloat);
  grad_log_ = at::zeros(alpha_.sizes(), alpha_.options());
}

Tensor Sm90RowGates::from_start(const Tensor& x) const { return gated(GateSide::kFromStart, alpha_, x); }

Tensor Sm90RowGates::to_end(const Tensor& y) const { return gated(GateSide::kToEnd, alpha_, y); }

void Sm90RowGates::carry(int64_t c, const Tensor& from, Tensor to) const { at::mul_out(to, from, whole_.select(1, c)); }

void Sm90RowGates::from_start_backward(const Tensor& grad, const Tensor& result, const Tensor& grad_x) {
  gated_backward(GateSide::kFromStart, alpha_, grad, result, grad_x, grad_log_);
}

void Sm90RowGates::to_end_backward(const Tensor& grad, const Tensor& result, const Tensor& grad_y) {
  gated_backward(GateSide::kToEnd, alpha_, grad, result, grad_y, grad_log_);
}

void Sm90RowGates::carry_backward(int64_t c, const Tensor& state, Tensor grad_state) {
  grad_state.mul_(whole_.select(1, c));
  grad_log_.select(1, c).add_(row_dot(state, grad_state).unsqueeze(1));
}

void Sm90RowGates::whole_backward(const Tensor& share) { grad_log_.add_(share.unsqueeze(2)); }

std::vector<Tensor> Sm90RowGates::scores(const std::vector<Tensor>& x, const Tensor& y) const {
  std::vector<Tensor> all;
  recurrence::GatedScores p;
  p.chunks = chunks_of(y);
  p.K = y.size(3);
  p.alpha = data(alpha_);
  p.y = data(y);
  for (size_t i = 0; i < x.size(); ++i) {
    all.push_back(at::empty({y.size(0), y.size(1), y.size(2), y.size(2)}, y.options()));
    p.x[i] = data(x[i]);
    p.scores[i] = mutable_data(all[i]);
  }
  C10_CUDA_CHECK(recurrence::gated_scores_sm90(p, c10::cuda::getCurrentCUDAStream()));
  return all;
}

Tensor Sm90RowGates::apply(const Tensor& weights, const Tensor& y) const {
  const Tensor z = at::empty(y.sizes(), y.options());
  C10_CUDA_CHECK(recurrence::gated_apply_sm90(chunks_of(y), y.size(3), data(alpha_), data(weights), data(y), mutable_data(z),
                                              c10::cuda::getCurrentCUDAStream()));
  return z;
}

void Sm90RowGates::scores_backward(const std::vector<Tensor>& grad, const std::vector<Tensor>& x, const Tensor& y,
                                   const std::vector<Tensor>& grad_x, const Tensor& grad_y) {
  for (size_t i = 0; i < x.size(); ++i) {
    recurrence::GatedScoresGradient p;
    p.chunks = chunks_of(y);
    p.K = y.size(3);
    p.alpha = data(alpha_);
    p.weights = data(grad[i]);
    p.x = data(x[i]);
    p.y = data(y);
    p.grad_x = mutable_data(grad_x[i]);
    p.grad_y = mutable_data(grad_y);
    p.grad_log = mutable_data(grad_log_);
    C10_CUDA_CHECK(recurrence::gated_scores_backward_sm90(p, c10::cuda::getCurrentCUDAStream()));
  }
}

}  // namespace cyfa::ops
