#include "cyfa/engine/sm90/train_ops.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cyfa/kernels/rowwise/rowwise_cuda.h"
#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/ops/dense/rowwise_cuda.h"

namespace cyfa::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr rowwise::RowType kType = rowwise::RowType::kBFloat16;

cudaStream_t stream() { return at::cuda::getCurrentCUDAStream().stream(); }
const float* floats(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }
at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }
void* column(const at::Tensor& x, int64_t index) { return static_cast<at::BFloat16*>(x.mutable_data_ptr()) + index; }

std::vector<int64_t> shaped_as(const at::Tensor& x, int64_t width) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = width;
  return shape;
}

// sum += a^T b in fp32, with a [N, rows] and b [N, in] in bf16. It runs on the main stream: a side stream makes a step of the 400M model
// only 1% faster (320 instead of 323 ms) and needs more memory.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor to = sum;
  at::addmm_out(to, sum, a.t(), b, at::kFloat);
}

// Non-tensor data, and tensors not tracked by autograd, that a Function saves for its backward.
template <class T>
struct Kept : torch::CustomClassHolder {
  explicit Kept(const T& x) : value(x) {}
  T value;
};
template <class T>
void keep(AutogradContext* ctx, const T& x) {
  ctx->saved_data["kept"] = c10::IValue::make_capsule(c10::make_intrusive<Kept<T>>(x));
}
template <class T>
T kept(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Kept<T>>(ctx->saved_data["kept"].toCapsule())->value;
}

// What a backward keeps of rows: the sum and the weight of their norm, or the rows. And the rows from it.
variable_list kept_rows(const at::Tensor& x, const NormAgain& again) {
  return again.sum.defined() ? variable_list{again.sum.detach(), again.weight} : variable_list{x, {}};
}
at::Tensor rows_again(const at::Tensor& x, const at::Tensor& norm_weight, double eps) {
  return norm_weight.defined() ? ops::row_kernels::norm_cuda(x.contiguous(), norm_weight, eps, {}).y : x;
}

class Linear : public torch::autograd::Function<Linear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Accumulated& w, const NormAgain& again) {
    ctx->save_for_backward(kept_rows(x, again));
    ctx->saved_data["eps"] = again.eps;
    keep(ctx, w);
    return at::mm(as_rows(x), w.value.t()).view(shaped_as(x, w.value.size(0)));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const ops::WithoutAutocast plain_types;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor x = rows_again(saved[0], saved[1], ctx->saved_data["eps"].toDouble()), grad = as_rows(grads[0]);
    const auto w = kept<Accumulated>(ctx);
    add_product(w.grad, grad, as_rows(x));
    return {at::mm(grad, w.value).view(x.sizes()), at::Tensor(), at::Tensor()};
  }
};

class SwigluHalves : public torch::autograd::Function<SwigluHalves> {
 public:
  static rowwise::SwigluCuda params(const at::Tensor& y) {
    rowwise::SwigluCuda p;
    p.type = kType;
    p.stride = y.size(-1);
    p.width = p.stride / 2;
    p.rows = y.numel() / p.stride;
    p.gate = column(y, 0);
    p.up = column(y, p.width);
    return p;
  }

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y) {
    const c10::cuda::CUDAGuard guard(y.device());
    const at::Tensor in = y.contiguous(), out = at::empty(shaped_as(y, y.size(-1) / 2), y.options());
    ctx->save_for_backward({in});
    rowwise::SwigluCuda p = params(in);
    p.out = out.mutable_data_ptr();
    C10_CUDA_CHECK(rowwise::swiglu_cuda(p, stream()));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor y = ctx->get_saved_variables()[0], grad = grads[0].contiguous(), out = at::empty_like(y);
    const c10::cuda::CUDAGuard guard(y.device());
    rowwise::SwigluCuda p = params(y);
    p.grad = grad.const_data_ptr();
    p.grad_gate = column(out, 0);
    p.grad_up = column(out, p.width);
    C10_CUDA_CHECK(rowwise::swiglu_backward_cuda(p, stream()));
    return {out};
  }
};

// linear(swiglu_halves(y), w) for contiguous y, and the gradient of y.
at::Tensor swiglu_product(const at::Tensor& y, const Accumulated& w) {
  const at::Tensor product = at::empty(shaped_as(y, y.size(-1) / 2), y.options());
  rowwise::SwigluCuda p = SwigluHalves::params(y);
  p.out = product.mutable_data_ptr();
  C10_CUDA_CHECK(rowwise::swiglu_cuda(p, stream()));
  return at::mm(as_rows(product), w.value.t()).view(shaped_as(y, w.value.size(0)));
}
at::Tensor swiglu_product_backward(const at::Tensor& y, const Accumulated& w, const at::Tensor& grad) {
  const at::Tensor into_product = at::mm(grad, w.value), product = at::empty_like(into_product), out = at::empty_like(y);
  rowwise::SwigluCuda p = SwigluHalves::params(y);
  p.out = product.mutable_data_ptr();
  p.grad = into_product.const_data_ptr();
  p.grad_gate = column(out, 0);
  p.grad_up = column(out, p.width);
  C10_CUDA_CHECK(rowwise::swiglu_backward_cuda(p, stream()));
  add_product(w.grad, grad, product);
  return out;
}

class SwigluLinear : public torch::autograd::Function<SwigluLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const Accumulated& w) {
    const c10::cuda::CUDAGuard guard(y.device());
    const at::Tensor in = y.contiguous();
    ctx->save_for_backward({in});
    keep(ctx, w);
    return swiglu_product(in, w);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const ops::WithoutAutocast plain_types;
    const at::Tensor y = ctx->get_saved_variables()[0];
    const c10::cuda::CUDAGuard guard(y.device());
    return {swiglu_product_backward(y, kept<Accumulated>(ctx), as_rows(grads[0])), at::Tensor()};
  }
};

class Mlp : public torch::autograd::Function<Mlp> {
 public:
  struct Parameters {
    Accumulated gate_and_up, down;
    double eps = 0;  // of the norm that gives the rows again
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Parameters& w, const NormAgain& again) {
    const c10::cuda::CUDAGuard guard(x.device());
    ctx->save_for_backward(kept_rows(x, again));
    keep(ctx, w);
    const at::Tensor y = at::mm(as_rows(x), w.gate_and_up.value.t());
    return swiglu_product(y, w.down).view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const ops::WithoutAutocast plain_types;
    const variable_list saved = ctx->get_saved_variables();
    const auto w = kept<Parameters>(ctx);
    const c10::cuda::CUDAGuard guard(saved[0].device());
    const at::Tensor x = rows_again(saved[0], saved[1], w.eps), rows = as_rows(x);
    const at::Tensor into_y = swiglu_product_backward(at::mm(rows, w.gate_and_up.value.t()), w.down, as_rows(grads[0]));
    add_product(w.gate_and_up.grad, into_y, rows);
    return {at::mm(into_y, w.gate_and_up.value).view(x.sizes()), at::Tensor(), at::Tensor()};
  }
};

// x [, plus] -> normed [, x + plus].
class AddNorm : public torch::autograd::Function<AddNorm> {
 public:
  struct Weight {
    Accumulated weight;
    std::function<void()> completed;
  };

  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& plus, const Weight& w,
                               double eps) {
    const at::Tensor in = x.contiguous(), more = plus ? plus->contiguous() : at::Tensor();
    const ops::row_kernels::Norm out = ops::row_kernels::norm_cuda(in, w.weight.value, eps, {}, more);
    ctx->save_for_backward({plus ? out.sum : in, out.rate});
    ctx->saved_data["plus"] = plus.has_value();
    ctx->set_materialize_grads(false);
    keep(ctx, w);
    if (plus) return {out.y, out.sum};
    return {out.y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto [weight, completed] = kept<Weight>(ctx);
    const at::Tensor past = grads.size() > 1 ? grads[1] : at::Tensor();
    at::Tensor grad_x = past;
    if (grads[0].defined()) {
      const at::Tensor rest = past.defined() ? past.contiguous() : past;
      grad_x = ops::row_kernels::norm_backward_cuda(saved[0], weight.value, {}, saved[1], grads[0].contiguous(), rest, {weight.grad, {}}).x;
    }
    if (completed) completed();
    return {grad_x, ctx->saved_data["plus"].toBool() ? grad_x : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

class GatedNorm : public torch::autograd::Function<GatedNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate, const Accumulated& weight, double eps,
                            const at::Tensor& bias_grad) {
    const at::Tensor in = x.contiguous(), by = gate.contiguous();
    const ops::row_kernels::Norm out = ops::row_kernels::norm_cuda(in, weight.value, eps, by);
    ctx->save_for_backward({in, by, out.rate});
    ctx->saved_data["bias_grad"] = bias_grad;
    keep(ctx, weight);
    return out.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto weight = kept<Accumulated>(ctx);
    const ops::row_kernels::NormSums sums = {weight.grad, ctx->saved_data["bias_grad"].toTensor()};
    const ops::row_kernels::NormGrads out =
        ops::row_kernels::norm_backward_cuda(saved[0], weight.value, saved[1], saved[2], grads[0].contiguous(), {}, sums);
    return {out.x, out.gate, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

class GatedNormLinear : public torch::autograd::Function<GatedNormLinear> {
 public:
  struct Parameters {
    Accumulated norm, product;
    at::Tensor bias_grad;
    double eps = 0;
    std::function<at::Tensor()> gate;
  };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate, const Parameters& w) {
    const at::Tensor in = x.contiguous(), by = gate.contiguous();
    const ops::row_kernels::Norm gated = ops::row_kernels::norm_cuda(in, w.norm.value, w.eps, by);
    ctx->save_for_backward({in, gated.rate});
    keep(ctx, w);
    const at::Tensor rows = gated.y.flatten(-2);
    return at::mm(as_rows(rows), w.product.value.t()).view(shaped_as(rows, w.product.value.size(0)));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const ops::WithoutAutocast plain_types;
    const variable_list saved = ctx->get_saved_variables();
    const auto w = kept<Parameters>(ctx);
    const at::Tensor &x = saved[0], &rate = saved[1], gate = w.gate().view(x.sizes()), grad = as_rows(grads[0]);
    {
      const at::Tensor rows = ops::row_kernels::norm_cuda(x, w.norm.value, w.eps, gate).y.flatten(-2);
      add_product(w.product.grad, grad, as_rows(rows));
    }
    const at::Tensor into_rows = at::mm(grad, w.product.value).view(x.sizes());
    const ops::row_kernels::NormGrads out =
        ops::row_kernels::norm_backward_cuda(x, w.norm.value, gate, rate, into_rows, {}, {w.norm.grad, w.bias_grad});
    return {out.x, out.gate, at::Tensor()};
  }
};

using cyclic_flow::ProjectionLayout;

std::array<int64_t, 3> widths(const ProjectionLayout& at) { return {at.k() - at.q(), at.v() - at.k(), at.gate() - at.v()}; }
std::array<int, 3> first_columns(const ProjectionLayout& at) { return {at.q(), at.k(), at.v()}; }
// Row stride of the fused projection in training, in elements: rows are aligned to 128 bytes.
int64_t row_stride(const ProjectionLayout& at) { return (at.columns() + 63) / 64 * 64; }

rowwise::GatesCuda gates_params(const FlowWeights& w, const at::Tensor& y) {
  rowwise::GatesCuda p;
  p.type = kType;
  p.rows = y.size(0);
  p.heads = w.layout.heads;
  p.stride = y.stride(0);
  p.x = column(y, w.layout.a());
  p.dt_bias = floats(w.dt_bias.value);
  p.A_log = floats(w.A_log.value);
  p.b_bias = floats(w.b_bias.value);
  p.d_bias = floats(w.d_bias.value);
  return p;
}

// The rows of the projection are aligned to 128 bytes.
at::Tensor rows_for(const ProjectionLayout& at, const at::Tensor& x) {
  return at::empty({x.numel() / x.size(-1), row_stride(at)}, x.options()).narrow(1, 0, at.columns());
}

rowwise::ConvCuda conv_params(const FlowWeights& w, const at::Tensor& y, const at::Tensor& tasks) {
  rowwise::ConvCuda p;
  p.type = kType;
  p.taps = w.conv[0].value.size(2);
  p.x_stride = row_stride(w.layout);
  p.task_count = tasks.size(0);
  p.tasks = reinterpret_cast<const rowwise::ConvTask*>(tasks.const_data_ptr<int64_t>());
  p.inputs = 3;
  for (size_t i = 0; i < 3; ++i) {
    p.input[i].width = widths(w.layout)[i];
    p.input[i].x = column(y, first_columns(w.layout)[i]);
    p.input[i].weight = floats(w.conv[i].value);
    p.input[i].bias = floats(w.conv_bias[i].value);
  }
  return p;
}

// The rows before each of N sequences, [N, taps - 1, width] for each convolution, if there are any before the first one.
std::array<at::Tensor, 3> rows_before(const FlowWeights& w, const at::Tensor& before, size_t sequences) {
  std::array<at::Tensor, 3> out;
  for (size_t i = 0; i < 3 && before.defined(); ++i) {
    const int64_t width = widths(w.layout)[i];
    out[i] = at::zeros({static_cast<int64_t>(sequences), before.size(1), width}, before.options());
    out[i].select(0, 0).copy_(before.select(0, 0).narrow(1, first_columns(w.layout)[i], width));
  }
  return out;
}

// The gradient of the rows before the first sequence, [1, taps - 1, layout.gate()], from those of the convolved q, k and v of that
// sequence's `tokens`: token t reads the rows from t on, row i by tap i - t.
at::Tensor before_gradient(const FlowWeights& w, const variable_list& grads, int64_t tokens) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < 3; ++i) {
    const at::Tensor taps = w.conv[i].value.squeeze(1).t();  // [taps, width]
    const int64_t past = taps.size(0) - 1, reading = std::min(past, tokens);
    const at::Tensor sum = at::zeros({past, taps.size(1)}, taps.options()), grad = as_rows(grads[i]).narrow(0, 0, reading).to(at::kFloat);
    for (int64_t t = 0; t < reading; ++t) sum.narrow(0, t, past - t).addcmul_(taps.narrow(0, 0, past - t), grad.narrow(0, t, 1));
    parts.push_back(sum);
  }
  return at::cat(parts, 1).to(at::kBFloat16).unsqueeze(0);
}

// The convolutions of y, forward.
std::array<at::Tensor, 3> convolve(const at::Tensor& y, const FlowWeights& w, const at::Tensor& tasks,
                                   const std::array<at::Tensor, 3>& before) {
  rowwise::ConvCuda conv = conv_params(w, y, tasks);
  std::array<at::Tensor, 3> out;
  for (size_t i = 0; i < 3; ++i) {
    out[i] = at::empty({y.size(0), widths(w.layout)[i]}, y.options());
    conv.input[i].y = out[i].mutable_data_ptr();
    if (before[i].defined()) conv.input[i].before = before[i].const_data_ptr();
  }
  C10_CUDA_CHECK(rowwise::conv_cuda(conv, stream()));
  return out;
}

// The second product of the output gate, [rows, H V].
at::Tensor output_gate(const at::Tensor& y, const FlowWeights& w) {
  return at::addmm(w.gate_bias.to(y.scalar_type()), y.narrow(1, w.layout.gate(), w.layout.rank), w.gate_second.value.t());
}

class FlowFunction : public torch::autograd::Function<FlowFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const FlowWeights& w, const std::vector<int64_t>& offsets,
                               const std::optional<at::Tensor>& before, const NormAgain& again, at::Tensor* projected) {
    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor first = before.value_or(at::Tensor());
    const auto [y, p] =
        project_rows(as_rows(x), w, ops::row_kernels::conv_tasks(offsets, x.device()), rows_before(w, first, offsets.size() - 1));
    *projected = y;
    variable_list out;
    for (const at::Tensor& part : {p.q, p.k, p.v, p.log_alpha, p.beta, p.delta, p.gate})
      out.push_back(part.view(shaped_as(x, part.size(1))));
    variable_list kept = kept_rows(x, again);
    kept.insert(kept.end(), {y, first});
    ctx->save_for_backward(std::move(kept));
    ctx->saved_data["eps"] = again.eps;
    ctx->saved_data["offsets"] = offsets;
    keep(ctx, w);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor x = rows_again(saved[0], saved[1], ctx->saved_data["eps"].toDouble()), &y = saved[2], &first = saved[3];
    const auto w = kept<FlowWeights>(ctx);
    const std::vector<int64_t> offsets = ctx->saved_data["offsets"].toIntVector();
    const c10::cuda::CUDAGuard guard(x.device());
    const ProjectionLayout& at = w.layout;
    for (at::Tensor& g : grads) g = g.contiguous();
    const at::Tensor grad_y = rows_for(at, x);
    const auto single = y.options().dtype(at::kFloat);

    const at::Tensor tasks = ops::row_kernels::conv_tasks(offsets, x.device());
    const std::array<at::Tensor, 3> before = rows_before(w, first, offsets.size() - 1);
    rowwise::ConvCuda conv = conv_params(w, y, tasks);
    for (size_t i = 0; i < 3; ++i) {
      if (before[i].defined()) conv.input[i].before = before[i].const_data_ptr();
      conv.input[i].grad = grads[i].const_data_ptr();
      conv.input[i].grad_x = column(grad_y, first_columns(at)[i]);
    }
    conv.bias_parts = w.conv_bias[0].defined();
    const at::Tensor conv_parts = at::empty({tasks.size(0), rowwise::conv_parts_columns(conv)}, single);
    conv.parts = conv_parts.data_ptr<float>();
    C10_CUDA_CHECK(rowwise::conv_backward_cuda(conv, stream()));
    rowwise::SumParts sum;
    sum.add = true;
    const float* parts = conv.parts;
    for (const Accumulated* kind : {w.conv, w.conv_bias}) {
      for (size_t i = 0; i < 3 && kind[i].defined(); parts += kind[i].grad.numel(), ++i) {
        sum.more(parts, tasks.size(0), conv_parts.size(1), kind[i].grad.data_ptr<float>(), kind[i].grad.numel());
      }
    }

    rowwise::GatesCuda gates = gates_params(w, y);
    const at::Tensor gate_parts = at::empty({rowwise::kGateParts, 4 * at.heads}, single);
    gates.grad_log_alpha = floats(grads[3]);
    gates.grad_beta = floats(grads[4]);
    gates.grad_delta = floats(grads[5]);
    gates.grad_x = column(grad_y, at.a());
    gates.fill = at.columns() - at.used();
    gates.parts = gate_parts.data_ptr<float>();
    C10_CUDA_CHECK(rowwise::gates_backward_cuda(gates, stream()));
    parts = gates.parts;
    for (const Accumulated* s : {&w.dt_bias, &w.A_log, &w.b_bias, &w.d_bias}) {
      sum.more(parts, rowwise::kGateParts, 4 * at.heads, s->grad.data_ptr<float>(), at.heads);
      parts += at.heads;
    }
    C10_CUDA_CHECK(rowwise::sum_parts_cuda(sum, stream()));

    const ops::WithoutAutocast plain_types;
    const at::Tensor grad_gate = as_rows(grads[6]);
    at::Tensor low = grad_y.narrow(1, at.gate(), at.rank);
    at::mm_out(low, grad_gate, w.gate_second.value);
    add_product(w.gate_second.grad, grad_gate, y.narrow(1, at.gate(), at.rank));
    add_product(w.projection.grad, grad_y, as_rows(x));
    const int64_t felt = w.clock_stop_gradient ? at.d() : at.columns();  // columns from which gradients flow to x
    const at::Tensor grad_x = at::mm(grad_y.narrow(1, 0, felt), w.projection.value.narrow(0, 0, felt)).view(x.sizes());
    const at::Tensor grad_before = first.defined() ? before_gradient(w, grads, offsets[1] - offsets[0]) : first;
    return {grad_x, at::Tensor(), at::Tensor(), grad_before, at::Tensor(), at::Tensor()};
  }
};

// Logits per chunk (512 MB): large enough that each matrix product fills the GPU.
constexpr int64_t kLogits = int64_t{1} << 28;

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Accumulated& weight, const at::Tensor& targets) {
    const c10::cuda::CUDAGuard guard(x.device());
    const int64_t N = x.size(0), V = weight.value.size(0);
    const auto single = x.options().dtype(at::kFloat);
    const at::Tensor share = at::reciprocal(targets.ne(ops::kIgnore).sum().clamp_min(1).to(at::kFloat));
    const at::Tensor losses = at::empty({N}, single), grad_x = at::empty_like(x), grad_weight = at::empty({V, x.size(1)}, single);
    const int64_t most = std::clamp<int64_t>(kLogits / V, 256, 8192);
    if (N == 0) grad_weight.zero_();
    for (int64_t begin = 0; begin < N; begin += most) {
      const int64_t n = std::min(most, N - begin);
      const at::Tensor part = x.narrow(0, begin, n), logits = at::mm(part, weight.value.t());
      rowwise::LossCuda p;
      p.type = kType;
      p.rows = n;
      p.width = V;
      p.logits = logits.mutable_data_ptr();
      p.targets = targets.const_data_ptr<int64_t>() + begin;
      p.ignore = ops::kIgnore;
      p.share = share.const_data_ptr<float>();
      p.loss = losses.data_ptr<float>() + begin;
      C10_CUDA_CHECK(rowwise::loss_cuda(p, stream()));
      at::Tensor to = grad_x.narrow(0, begin, n), sum = grad_weight;
      at::mm_out(to, logits, weight.value);
      at::addmm_out(sum, grad_weight, logits.t(), part, at::kFloat, begin == 0 ? 0 : 1);
    }
    ctx->save_for_backward({grad_x, grad_weight});
    ctx->saved_data["grad"] = weight.grad;
    return losses.sum() * share;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    ctx->saved_data["grad"].toTensor().addcmul_(saved[1], grads[0]);
    return {saved[0] * grads[0].to(saved[0].scalar_type()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const Accumulated& w, const NormAgain& again) { return Linear::apply(x, w, again); }

at::Tensor swiglu_halves(const at::Tensor& y) { return SwigluHalves::apply(y); }

at::Tensor swiglu_linear(const at::Tensor& y, const Accumulated& w) { return SwigluLinear::apply(y, w); }

at::Tensor mlp(const at::Tensor& x, const Accumulated& gate_and_up, const Accumulated& down, const NormAgain& again) {
  return Mlp::apply(x, Mlp::Parameters{gate_and_up, down, again.eps}, again);
}

at::Tensor gated_rms_norm_linear(const at::Tensor& x, const Accumulated& weight, double eps, const at::Tensor& gate,
                                 const std::function<at::Tensor()>& again, const at::Tensor& bias_grad, const Accumulated& w) {
  return GatedNormLinear::apply(x, gate, GatedNormLinear::Parameters{weight, w, bias_grad, eps, again});
}

AddedNorm add_rms_norm(const at::Tensor& x, const at::Tensor& plus, const Accumulated& weight, double eps,
                       const std::function<void()>& completed) {
  const variable_list out = AddNorm::apply(x, plus.defined() ? std::optional(plus) : std::nullopt, AddNorm::Weight{weight, completed}, eps);
  return {plus.defined() ? out[1] : x, out[0]};
}

at::Tensor gated_rms_norm(const at::Tensor& x, const Accumulated& weight, double eps, const at::Tensor& gate, const at::Tensor& bias_grad) {
  return GatedNorm::apply(x, gate, weight, eps, bias_grad);
}

FlowRows project_rows(const at::Tensor& x, const FlowWeights& w, const at::Tensor& tasks, const std::array<at::Tensor, 3>& before) {
  const ProjectionLayout& at = w.layout;
  const int64_t rows = x.size(0);
  const auto single = x.options().dtype(at::kFloat);
  FlowRows out{rows_for(at, x), {}};
  at::Tensor to = out.y;
  at::mm_out(to, x, w.projection.value.t());
  FlowProjections& p = out.p;
  std::tie(p.q, p.k, p.v) = std::tuple_cat(convolve(out.y, w, tasks, before));
  for (at::Tensor* gate : {&p.log_alpha, &p.beta, &p.delta}) *gate = at::empty({rows, at.heads}, single);
  rowwise::GatesCuda gates = gates_params(w, out.y);
  gates.log_alpha = p.log_alpha.data_ptr<float>();
  gates.beta = p.beta.data_ptr<float>();
  gates.delta = p.delta.data_ptr<float>();
  C10_CUDA_CHECK(rowwise::gates_cuda(gates, stream()));
  p.gate = output_gate(out.y, w);
  return out;
}

void conv_tails(const at::Tensor& y, const FlowWeights& w, const int64_t* borders, const std::array<at::Tensor, 3>& before,
                const std::array<at::Tensor, 3>& tails) {
  rowwise::ConvTailsCuda p;
  p.type = kType;
  p.sequences = tails[0].size(0);
  p.taps = w.conv[0].value.size(2);
  p.x_stride = y.stride(0);
  p.borders = borders;
  p.inputs = 3;
  for (size_t i = 0; i < 3; ++i) {
    p.input[i] = {widths(w.layout)[i], column(y, first_columns(w.layout)[i]), floats(before[i]), tails[i].data_ptr<float>()};
  }
  C10_CUDA_CHECK(rowwise::conv_tails_cuda(p, stream()));
}

FlowProjections flow_projections(const at::Tensor& x, const FlowWeights& w, const std::optional<at::Tensor>& cu_seqlens,
                                 const at::Tensor& before) {
  return flow_projections_again(x, w, cu_seqlens, before, {}).p;
}

FlowAgain flow_projections_again(const at::Tensor& x, const FlowWeights& w, const std::optional<at::Tensor>& cu_seqlens,
                                 const at::Tensor& before, const NormAgain& again) {
  constexpr const char* kOp = "flow_projections";
  ops::check::shape(kOp, "x", x, {{"B", -1}, {"T", -1}, {"D", w.projection.value.size(1)}});
  std::vector<int64_t> offsets;
  if (cu_seqlens) {
    ops::check::borders(kOp, *cu_seqlens, x.size(0), x.device());
    offsets = ops::check::sequence_offsets(kOp, *cu_seqlens, x.size(1));
  } else {
    for (int64_t b = 0; b <= x.size(0); ++b) offsets.push_back(b * x.size(1));
  }
  if (before.defined()) {
    ops::check::shape(kOp, "before", before, {{"1", 1}, {"taps - 1", w.conv[0].value.size(2) - 1}, {"widths", w.layout.gate()}});
  }
  at::Tensor y;
  const variable_list out = FlowFunction::apply(x, w, offsets, before.defined() ? std::optional(before) : std::nullopt, again, &y);
  const auto convolved = [y, w, offsets, first = before.defined() ? before.detach() : before, shape = x.sizes().vec()] {
    const c10::cuda::CUDAGuard guard(y.device());
    std::array<at::Tensor, 3> rows =
        convolve(y, w, ops::row_kernels::conv_tasks(offsets, y.device()), rows_before(w, first, offsets.size() - 1));
    for (at::Tensor& part : rows) part = part.view({shape[0], shape[1], w.layout.heads, -1});
    return rows;
  };
  const auto gate = [y, w] { return output_gate(y, w); };
  return {{out[0], out[1], out[2], out[3], out[4], out[5], out[6]}, convolved, gate};
}

FlowProjections flow_projections_step(const at::Tensor& x, const FlowWeights& w, const std::array<at::Tensor, 3>& tails) {
  ops::check::shape("flow_projections_step", "x", x, {{"B", -1}, {"D", w.projection.value.size(1)}});
  const c10::cuda::CUDAGuard guard(x.device());
  const ProjectionLayout& at = w.layout;
  const int64_t B = x.size(0);
  const at::Tensor y = at::mm(x, w.projection.value.t());
  at::Tensor out[3];
  rowwise::ConvStepCuda conv;
  conv.type = kType;
  conv.batch = B;
  conv.taps = w.conv[0].value.size(2);
  conv.inputs = 3;
  conv.x_stride = y.stride(0);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t width = widths(at)[i];
    out[i] = at::empty({B, width}, x.options());
    conv.input[i] = {width,
                     column(y, first_columns(at)[i]),
                     floats(w.conv[i].value),
                     floats(w.conv_bias[i].value),
                     tails[i].data_ptr<float>(),
                     out[i].mutable_data_ptr()};
  }
  C10_CUDA_CHECK(rowwise::conv_step_cuda(conv, stream()));
  const auto single = x.options().dtype(at::kFloat);
  const at::Tensor log_alpha = at::empty({B, at.heads}, single), beta = at::empty_like(log_alpha), delta = at::empty_like(log_alpha);
  rowwise::GatesCuda gates = gates_params(w, y);
  gates.log_alpha = log_alpha.data_ptr<float>();
  gates.beta = beta.data_ptr<float>();
  gates.delta = delta.data_ptr<float>();
  C10_CUDA_CHECK(rowwise::gates_cuda(gates, stream()));
  const at::Tensor gate = at::addmm(w.gate_bias, y.narrow(1, at.gate(), at.rank), w.gate_second.value.t());
  return {out[0], out[1], out[2], log_alpha, beta, delta, gate};
}

at::Tensor linear_cross_entropy(const at::Tensor& x, const Accumulated& weight, const at::Tensor& targets) {
  constexpr const char* kOp = "linear_cross_entropy";
  ops::check::shape(kOp, "x", x, {{"N", -1}, {"D", weight.value.size(1)}});
  ops::check::shape(kOp, "targets", targets, {{"N", x.size(0)}});
  return CrossEntropy::apply(x.contiguous(), weight, targets.contiguous());
}

}  // namespace cyfa::fused
