#include "cyfa/ops/short_conv.h"

#include "cyfa/kernels/rows/rows.h"
#include "cyfa/ops/check.h"

namespace cyfa::ops {
namespace {

constexpr const char* kOp = "short_conv";

// weight [D, 1, W] as W rows [D], the newest token's first.
std::vector<at::Tensor> taps(const at::Tensor& weight, at::ScalarType dtype) {
  std::vector<at::Tensor> rows = weight.squeeze(1).to(dtype).t().unbind(0);
  return {rows.rbegin(), rows.rend()};
}

at::Tensor initial_rows(const at::Tensor& x, const std::optional<at::Tensor>& initial_state, int64_t N, int64_t past) {
  if (!initial_state) return at::zeros({N, past, x.size(2)}, x.options());
  check::shape(kOp, "initial_state", *initial_state, {{"N", N}, {"W - 1", past}, {"D", x.size(2)}});
  check::same_device(kOp, "initial_state", *initial_state, "x", x.device());
  return initial_state->to(x.scalar_type());
}

// Where each tap of each token, and each row of the final state, is found among the rows [initial states; tokens].
struct Places {
  std::vector<at::Tensor> tap;  // W of [T]
  at::Tensor last;              // [N * (W - 1)]

  Places(const std::vector<int64_t>& offsets, int64_t past, at::Device device) {
    const auto N = static_cast<int64_t>(offsets.size()) - 1;
    const auto row = [&](int64_t n, int64_t t) {  // of token t of sequence n, counted from its start; t of at least -past
      return t < 0 ? n * past + past + t : N * past + offsets[static_cast<size_t>(n)] + t;
    };
    for (int64_t w = 0; w <= past; ++w) {
      std::vector<int64_t> rows;
      rows.reserve(static_cast<size_t>(offsets.back()));
      for (int64_t n = 0; n < N; ++n) {
        const int64_t tokens = offsets[static_cast<size_t>(n) + 1] - offsets[static_cast<size_t>(n)];
        for (int64_t t = 0; t < tokens; ++t) rows.push_back(row(n, t - w));
      }
      tap.push_back(at::tensor(rows, at::kLong).to(device));
    }
    std::vector<int64_t> rows;
    for (int64_t n = 0; n < N; ++n) {
      const int64_t tokens = offsets[static_cast<size_t>(n) + 1] - offsets[static_cast<size_t>(n)];
      for (int64_t i = 0; i < past; ++i) rows.push_back(row(n, tokens - past + i));
    }
    last = at::tensor(rows, at::kLong).to(device);
  }
};

}  // namespace

ShortConvOutput short_conv(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           const std::optional<at::Tensor>& initial_state, const std::optional<at::Tensor>& cu_seqlens) {
  check::shape(kOp, "x", x, {{"B", -1}, {"T", -1}, {"D", -1}});
  const int64_t B = x.size(0), T = x.size(1), D = x.size(2);
  check::shape(kOp, "weight", weight, {{"D", D}, {"1", 1}, {"W", -1}});
  check::same_device(kOp, "weight", weight, "x", x.device());
  const int64_t past = weight.size(2) - 1;
  if (past < 0) check::fail(kOp, "weight has no taps, wanted W of at least 1");
  if (bias) check::shape(kOp, "bias", *bias, {{"D", D}});
  const std::vector<at::Tensor> tap = taps(weight, x.scalar_type());
  ShortConvOutput out;
  if (cu_seqlens) {
    check::borders(kOp, *cu_seqlens, B, x.device());
    const std::vector<int64_t> offsets = check::sequence_offsets(kOp, *cu_seqlens, T);
    const auto N = static_cast<int64_t>(offsets.size()) - 1;
    const at::Tensor rows = at::cat({initial_rows(x, initial_state, N, past).reshape({N * past, D}), x.squeeze(0)});
    const Places places(offsets, past, x.device());
    out.y = x.squeeze(0) * tap[0];
    for (size_t w = 1; w < tap.size(); ++w) out.y = at::addcmul(out.y, rows.index_select(0, places.tap[w]), tap[w]);
    out.y = out.y.unsqueeze(0);
    out.final_state = rows.index_select(0, places.last).view({N, past, D});
  } else {
    const at::Tensor rows = at::cat({initial_rows(x, initial_state, B, past), x}, 1);
    out.y = x * tap[0];
    for (size_t w = 1; w < tap.size(); ++w) out.y = at::addcmul(out.y, rows.narrow(1, past - static_cast<int64_t>(w), T), tap[w]);
    out.final_state = rows.narrow(1, T, past).contiguous();
  }
  if (bias) out.y = out.y + bias->to(x.scalar_type());
  return out;
}

at::Tensor short_conv_step(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::Tensor& state) {
  constexpr const char* kStep = "short_conv_step";
  const at::NoGradGuard no_grad;
  check::shape(kStep, "x", x, {{"B", -1}, {"D", -1}});
  check::shape(kStep, "weight", weight, {{"D", x.size(1)}, {"1", 1}, {"W", -1}});
  const int64_t past = weight.size(2) - 1;
  check::shape(kStep, "state", state, {{"B", x.size(0)}, {"W - 1", past}, {"D", x.size(1)}});
  if (x.is_cpu() && x.scalar_type() == at::kFloat && state.scalar_type() == at::kFloat && state.is_contiguous()) {
    const at::Tensor in = x.contiguous(), w = weight.squeeze(1).to(at::kFloat).t().contiguous(), b = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
    const int64_t D = x.size(1);
    const at::Tensor y = at::empty_like(in);
    for (int64_t i = 0; i < x.size(0); ++i) {
      rows::conv_step(D, past + 1, in.const_data_ptr<float>() + i * D, w.const_data_ptr<float>(), bias ? b.const_data_ptr<float>() : nullptr,
                      state.data_ptr<float>() + i * past * D, y.data_ptr<float>() + i * D);
    }
    return y;
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
