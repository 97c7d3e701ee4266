// See short_conv.h.
#include "cyfa/ops/dense/short_conv.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cyfa/kernels/rowwise/rowwise.h"
#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/common/in_place.h"
#include "cyfa/ops/common/once_differentiable.h"
#include "cyfa/ops/dense/rowwise.h"
#include "cyfa/ops/dense/rowwise_cuda.h"

namespace cyfa::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "short_conv";

// weight [D, 1, W] as W rows [D], the newest token's tap first.
std::vector<at::Tensor> taps(const at::Tensor& weight, at::ScalarType dtype) {
  std::vector<at::Tensor> rows = weight.squeeze(1).to(dtype).t().unbind(0);
  return {rows.rbegin(), rows.rend()};
}

class ConvFunction : public torch::autograd::Function<ConvFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& before, const std::vector<int64_t>& offsets) {
    const at::Tensor shift = bias.value_or(at::Tensor()), first = before.value_or(at::Tensor());
    ctx->save_for_backward({x, weight, shift, first});
    ctx->saved_data["offsets"] = offsets;
    return row_kernels::conv(x, weight, shift, first, offsets);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> offsets = ctx->saved_data["offsets"].toIntVector();
    row_kernels::ConvGrads out = row_kernels::conv_backward(saved[0], saved[1], saved[2], saved[3], offsets, grads[0]);
    if (out.bias.defined()) out.bias = out.bias.to(saved[2].scalar_type());
    return once_differentiable(kOp, {out.x, out.weight.to(saved[1].scalar_type()), out.bias, out.before, at::Tensor()}, saved, grads);
  }
};

// The convolution without a kernel: for every tap, gathers the rows that it multiplies from [before; x].
at::Tensor conv_by_taps(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                        const std::vector<int64_t>& offsets) {
  const int64_t W = weight.size(1), past = W - 1;
  const auto N = static_cast<int64_t>(offsets.size()) - 1;
  const at::Tensor rows =
      at::cat({before.defined() ? before.reshape({N * past, x.size(1)}) : at::zeros({N * past, x.size(1)}, x.options()), x});
  at::Tensor y;
  for (int64_t w = 0; w < W; ++w) {
    std::vector<int64_t> places;
    places.reserve(static_cast<size_t>(offsets.back()));
    for (int64_t n = 0; n < N; ++n) {
      const int64_t first = offsets[static_cast<size_t>(n)], tokens = offsets[static_cast<size_t>(n) + 1] - first;
      for (int64_t t = 0; t < tokens; ++t) places.push_back(t < w ? n * past + past + t - w : N * past + first + t - w);
    }
    const at::Tensor tap = weight.select(1, past - w).to(x.scalar_type());
    const at::Tensor row = rows.index_select(0, at::tensor(places, at::kLong).to(x.device()));
    y = w == 0 ? row * tap : at::addcmul(y, row, tap);
  }
  return bias.defined() ? y + bias.to(x.scalar_type()) : y;
}

// The last `past` rows of each sequence, including rows before its first token: [N, past, D].
at::Tensor last_rows(const at::Tensor& x, const at::Tensor& before, const std::vector<int64_t>& offsets, int64_t past) {
  std::vector<at::Tensor> tails;
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    const int64_t tokens = std::min(past, offsets[n + 1] - offsets[n]);
    if (tokens < past) {
      tails.push_back(before.defined() ? before.select(0, static_cast<int64_t>(n)).narrow(0, tokens, past - tokens)
                                       : at::zeros({past - tokens, x.size(1)}, x.options()));
    }
    tails.push_back(x.narrow(0, offsets[n + 1] - tokens, tokens));
  }
  const auto N = static_cast<int64_t>(offsets.size()) - 1;
  return tails.empty() ? at::empty({N, past, x.size(1)}, x.options()) : at::cat(tails).view({N, past, x.size(1)});
}

}  // namespace

ShortConvOutput short_conv(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           const std::optional<at::Tensor>& initial_state, const std::optional<at::Tensor>& cu_seqlens) {
  const WithoutAutocast plain_types;
  check::shape(kOp, "x", x, {{"B", -1}, {"T", -1}, {"D", -1}});
  const int64_t B = x.size(0), T = x.size(1), D = x.size(2);
  check::shape(kOp, "weight", weight, {{"D", D}, {"1", 1}, {"W", -1}});
  check::same_device(kOp, "weight", weight, "x", x.device());
  const int64_t past = weight.size(2) - 1;
  if (past < 0) check::fail(kOp, "weight has no taps, wanted W of at least 1");
  if (bias) check::shape(kOp, "bias", *bias, {{"D", D}});
  std::vector<int64_t> offsets;
  if (cu_seqlens) {
    check::borders(kOp, *cu_seqlens, B, x.device());
    offsets = check::sequence_offsets(kOp, *cu_seqlens, T);
  } else {
    for (int64_t b = 0; b <= B; ++b) offsets.push_back(b * T);
  }
  at::Tensor before;
  if (initial_state) {
    check::shape(kOp, "initial_state", *initial_state, {{"N", static_cast<int64_t>(offsets.size()) - 1}, {"W - 1", past}, {"D", D}});
    check::same_device(kOp, "initial_state", *initial_state, "x", x.device());
    before = initial_state->to(x.scalar_type());
  }
  const at::Tensor rows = x.reshape({B * T, D}), tap = weight.squeeze(1), shift = bias.value_or(at::Tensor());
  const auto recorded = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  const bool record = at::GradMode::is_enabled() && (recorded(x) || recorded(tap) || recorded(shift) || recorded(before));
  ShortConvOutput out;
  if (!row_kernels::conv_takes(x, past + 1)) {
    out.y = conv_by_taps(rows, tap, shift, before, offsets);
  } else {
    out.y = record ? ConvFunction::apply(rows, tap, bias, before.defined() ? std::optional(before) : std::nullopt, offsets)
                   : row_kernels::conv(rows, tap, shift, before, offsets);
  }
  out.y = out.y.view({B, T, D});
  out.final_state = last_rows(rows, before, offsets, past);
  return out;
}

at::Tensor short_conv_step(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::Tensor& state) {
  constexpr const char* kStep = "short_conv_step";
  const WithoutAutocast plain_types;
  check::shape(kStep, "x", x, {{"B", -1}, {"D", -1}});
  check::shape(kStep, "weight", weight, {{"D", x.size(1)}, {"1", 1}, {"W", -1}});
  const int64_t past = weight.size(2) - 1;
  if (past < 0) check::fail(kStep, "weight has no taps, wanted W of at least 1");
  if (bias) check::shape(kStep, "bias", *bias, {{"D", x.size(1)}});
  check::shape(kStep, "state", state, {{"B", x.size(0)}, {"W - 1", past}, {"D", x.size(1)}});
  for (const auto& [name, y] : {std::pair<const char*, const at::Tensor&>{"x", x}, {"weight", weight}, {"state", state}}) {
    check::floating(kStep, name, y);
    check::same_device(kStep, name, y, "x", x.device());
  }
  check::written(kStep, {{"state", state}}, {{"x", x}, {"weight", weight}, {"bias", bias.value_or(at::Tensor())}});
  mark_written(kStep, {state});
  const at::NoGradGuard no_grad;
  if (x.is_cpu() && x.scalar_type() == at::kFloat && state.scalar_type() == at::kFloat && state.is_contiguous()) {
    const at::Tensor in = x.contiguous(), w = weight.squeeze(1).to(at::kFloat).t().contiguous(),
                     b = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
    const int64_t D = x.size(1);
    const at::Tensor y = at::empty_like(in);
    for (int64_t i = 0; i < x.size(0); ++i) {
      rowwise::conv_step(D, past + 1, in.const_data_ptr<float>() + i * D, w.const_data_ptr<float>(),
                         bias ? b.const_data_ptr<float>() : nullptr, state.data_ptr<float>() + i * past * D, y.data_ptr<float>() + i * D);
    }
    return y;
  }
  if (row_kernels::conv_step_takes_cuda(x, state)) {
    return row_kernels::conv_step_cuda(x.contiguous(), weight.squeeze(1).to(at::kFloat).contiguous(),
                                       bias ? bias->to(at::kFloat).contiguous() : at::Tensor(), state);
  }
  const std::vector<at::Tensor> tap = taps(weight, state.scalar_type());
  const at::Tensor now = x.to(state.scalar_type());
  at::Tensor y = now * tap[0];
  for (int64_t w = 1; w <= past; ++w) y.addcmul_(state.select(1, past - w), tap[static_cast<size_t>(w)]);
  if (bias) y.add_(*bias);
  for (int64_t i = 0; i + 1 < past; ++i) state.select(1, i).copy_(state.select(1, i + 1));
  if (past > 0) state.select(1, past - 1).copy_(now);
  return y.to(x.scalar_type());
}

}  // namespace cyfa::ops
