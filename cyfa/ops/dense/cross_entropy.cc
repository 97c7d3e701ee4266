// See cross_entropy.h.
#include "cyfa/ops/dense/cross_entropy.h"

#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/common/once_differentiable.h"

namespace cyfa::ops {
namespace {

// Logits computed at a time: 16 MB of fp32, which stay in a CPU's cache, or 256 MB, enough to occupy a GPU.
constexpr int64_t kLogits = int64_t{1} << 22, kLogitsOnGpu = int64_t{1} << 26;

constexpr const char* kOp = "linear_cross_entropy";

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Parts {
  at::Tensor loss, grad_x, grad_weight;  // gradients are undefined if not requested
};

// On a GPU a check would cost a synchronisation: there a target that is out of range makes the loss NaN.
void check_targets(const char* op, const at::Tensor& targets, int64_t V) {
  if (!targets.is_cpu() || targets.numel() == 0) return;
  const auto [least, most] = at::aminmax(targets.masked_fill(targets.eq(kIgnore), 0));
  const int64_t low = least.item<int64_t>(), high = most.item<int64_t>();
  if (low >= 0 && high < V) return;
  check::fail(op, "targets hold " + std::to_string(low < 0 ? low : high) + ", wanted 0 to " + std::to_string(V - 1) + ", or " +
                      std::to_string(kIgnore) + " for a row that is ignored");
}

Parts compute(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, bool want_x, bool want_weight) {
  const at::ScalarType wide = at::promote_types(x.scalar_type(), at::kFloat);
  const int64_t N = x.size(0), V = weight.size(0);
  const at::Tensor counts = targets.ne(kIgnore);
  const at::Tensor share = at::reciprocal(counts.sum().clamp_min(1).to(wide));
  Parts out;
  out.loss = at::zeros({}, x.options().dtype(wide));
  if (want_x) out.grad_x = at::empty_like(x);
  if (want_weight) out.grad_weight = at::zeros(weight.sizes(), weight.options().dtype(wide));
  const int64_t rows = std::clamp<int64_t>((x.is_cuda() ? kLogitsOnGpu : kLogits) / V, 32, 8192);
  for (int64_t begin = 0; begin < N; begin += rows) {
    const int64_t n = std::min(rows, N - begin);
    const at::Tensor part = x.narrow(0, begin, n), counted = counts.narrow(0, begin, n).unsqueeze(1);
    const at::Tensor target = targets.narrow(0, begin, n).unsqueeze(1), index = target.clamp(0, V - 1);
    at::Tensor p = at::log_softmax(at::mm(part, weight.t()).to(wide), 1);
    const at::Tensor chosen = x.is_cpu() ? p.gather(1, index) : p.gather(1, index).masked_fill_(index.ne(target), kNaN);
    out.loss.sub_(chosen.masked_fill(counted.logical_not(), 0).sum());
    if (!want_x && !want_weight) continue;
    p.exp_().scatter_add_(1, index, at::full({n, 1}, -1, p.options()));
    p.mul_(counted * share);
    const at::Tensor grad = p.to(x.scalar_type());
    if (want_x) {
      at::Tensor to = out.grad_x.narrow(0, begin, n);
      at::mm_out(to, grad, weight);
    }
    if (want_weight) {
      if (wide == x.scalar_type()) {
        out.grad_weight.addmm_(grad.t(), part);
      } else {
        out.grad_weight.add_(at::mm(grad.t(), part));
      }
    }
  }
  out.loss.mul_(share);
  return out;
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& targets) {
    const Parts parts = compute(x, weight, targets, x.requires_grad(), weight.requires_grad());
    ctx->save_for_backward({parts.grad_x, parts.grad_weight, x, weight});
    ctx->saved_data["weight_type"] = static_cast<int64_t>(weight.scalar_type());
    return parts.loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["weight_type"].toInt());
    const auto scaled = [&](const at::Tensor& x) { return x.defined() ? x * grads[0].to(x.scalar_type()) : x; };
    const at::Tensor weight = scaled(saved[1]);
    return once_differentiable(kOp, {scaled(saved[0]), weight.defined() ? weight.to(type) : weight, at::Tensor()}, saved, grads);
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets) {
  const WithoutAutocast plain_types;
  check::shape(kOp, "x", x, {{"N", -1}, {"D", -1}});
  check::shape(kOp, "weight", weight, {{"V", -1}, {"D", x.size(1)}});
  check::shape(kOp, "targets", targets, {{"N", x.size(0)}});
  check::same_dtype(kOp, "weight", weight, "x", x.scalar_type());
  if (targets.scalar_type() != at::kLong)
    check::fail(kOp, std::string("targets have type ") + c10::toString(targets.scalar_type()) + ", wanted Long");
  check_targets(kOp, targets, weight.size(0));
  const bool recorded = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return recorded ? LinearCrossEntropy::apply(x, weight, targets) : compute(x, weight, targets, false, false).loss;
}

}  // namespace cyfa::ops
