// The projections of dense.h; dense_rowwise.cc has the rest.
#include "cyfa/ops/dense/dense.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "cyfa/kernels/dense/gemv.h"
#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/common/grain.h"
#include "cyfa/ops/dense/linear_in_blocks.h"

namespace cyfa::ops {
namespace {

// Rows of a bf16 weight that are converted together: 16 MB at a width of 1,024.
constexpr int64_t kWidenRows = 4096;

bool plain_fp32(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }
bool recorded(const at::Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad(); }
bool is_narrow(const at::Tensor& x, const at::Tensor& weight) {
  return plain_fp32(x) && weight.is_cpu() && weight.scalar_type() == at::kBFloat16;
}

// Outputs of a task of products_in_blocks(): with 64 rows of 1,024 it takes less than a millisecond.
constexpr int64_t kPanel = 1024;

thread_local int in_blocks = 0;

// oneDNN's product of x [rows, in] and weight [out, in], by torch's name for it; absent in a build of torch without it.
const std::optional<c10::OperatorHandle>& onednn_linear() {
  static const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  return op;
}

at::Tensor onednn_product(const at::Tensor& x, const at::Tensor& weight) {
  torch::jit::Stack stack = {x, weight, c10::IValue(), "none", c10::List<std::optional<at::Scalar>>(), ""};
  onednn_linear()->callBoxed(stack);
  return stack.front().toTensor();
}

// out [rows, columns] = x times the transpose of weight, both fp32. Every task is one product of the same size, on one thread.
void products_in_blocks(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  const int64_t rows = x.size(0), blocks = (rows + kRowBlock - 1) / kRowBlock, panels = (weight.size(0) + kPanel - 1) / kPanel;
  at::Tensor whole = x.contiguous();
  if (blocks * kRowBlock > rows) whole = at::cat({x, at::zeros({blocks * kRowBlock - rows, x.size(1)}, x.options())});
  at::parallel_for(0, blocks * panels, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % blocks * kRowBlock, column = task / blocks * kPanel;
      const int64_t count = std::min(kRowBlock, rows - row), columns = std::min(kPanel, weight.size(0) - column);
      const at::Tensor y = onednn_product(whole.narrow(0, row, kRowBlock), weight.narrow(0, column, columns));
      out.narrow(0, row, count).narrow(1, column, columns).copy_(y.narrow(0, 0, count));
    }
  });
}

// x times a weight in fp32 or bf16; of a bf16 weight kWidenRows outputs at a time are converted.
at::Tensor widened_linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const at::Tensor out = at::empty({rows.size(0), weight.size(0)}, x.options());
  for (int64_t begin = 0; begin < weight.size(0); begin += kWidenRows) {
    const int64_t count = std::min(kWidenRows, weight.size(0) - begin);
    at::Tensor part = out.narrow(1, begin, count);
    const at::Tensor wide = weight.narrow(0, begin, count).to(at::kFloat);
    if (in_blocks > 0 && onednn_linear()) {
      products_in_blocks(rows, wide.contiguous(), part);
    } else {
      at::mm_out(part, rows, wide.t());
    }
  }
  if (bias) out.add_(*bias);
  return out.view(shape);
}

void check_step(const at::Tensor& x, const LinearWeight& w) {
  constexpr const char* kOp = "linear_step";
  check::shape(kOp, "x", x, {{"B", -1}, {"in", -1}});
  check::shape(kOp, "weight", w.weight, {{"out", -1}, {"in", x.size(1)}});
  if (w.bias) check::shape(kOp, "bias", *w.bias, {{"out", w.weight.size(0)}});
}

bool has_kernel(const at::Tensor& x, const LinearWeight& w) {
  const at::ScalarType type = w.weight.scalar_type();
  return plain_fp32(x) && w.weight.is_cpu() && (type == at::kFloat || type == at::kBFloat16) && w.weight.is_contiguous();
}

}  // namespace

at::ScalarType activation_type(at::ScalarType weight, at::Device device) {
  return device.is_cpu() && weight == at::kBFloat16 ? at::kFloat : weight;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const WithoutAutocast plain_types;
  const bool blocks = in_blocks > 0 && onednn_linear() && plain_fp32(x) && plain_fp32(weight) && !recorded(x) && !recorded(weight);
  if (blocks) return widened_linear(x, weight, bias);
  if (!is_narrow(x, weight)) return at::linear(x, weight, bias);
  if (!recorded(x) && !recorded(weight)) return widened_linear(x, weight, bias);
  const at::Tensor y = at::linear(x.to(at::kBFloat16), weight).to(at::kFloat);
  return bias ? y + *bias : y;
}

LinearInBlocks::LinearInBlocks() { ++in_blocks; }
LinearInBlocks::~LinearInBlocks() { --in_blocks; }

std::vector<at::Tensor> linear_steps(const at::Tensor& x, const std::vector<LinearWeight>& weights) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> results;
  std::vector<dense::Gemv> products;
  std::vector<at::Tensor> keep;
  at::Tensor interleaved;
  if (plain_fp32(x) && x.dim() == 2) {
    interleaved = at::empty({dense::interleaved_floats(x.size(0), x.size(1))}, x.options());
    dense::interleave_vectors(x.size(0), x.size(1), x.contiguous().const_data_ptr<float>(), interleaved.data_ptr<float>());
  }
  std::vector<int64_t> first = {0};  // first output row of each product, counting all products
  for (const LinearWeight& w : weights) {
    check_step(x, w);
    if (!has_kernel(x, w)) {
      results.push_back(ops::linear(x, w.weight, w.bias));
      continue;
    }
    results.push_back(at::empty({x.size(0), w.weight.size(0)}, x.options()));
    dense::Gemv g;
    g.batch = x.size(0);
    g.in = x.size(1);
    g.out = w.weight.size(0);
    g.weight = w.weight.const_data_ptr();
    g.type = w.weight.scalar_type() == at::kFloat ? dense::WeightType::kF32 : dense::WeightType::kBf16;
    g.x = interleaved.const_data_ptr<float>();
    if (w.bias) {
      keep.push_back(w.bias->to(at::kFloat).contiguous());
      g.bias = keep.back().const_data_ptr<float>();
    }
    g.y = results.back().data_ptr<float>();
    products.push_back(g);
    first.push_back(first.back() + g.out);
  }
  if (products.empty()) return results;
  const cpu::Isa isa = cpu::best_isa();
  at::parallel_for(0, first.back(), std::max<int64_t>(4, grain(x.size(1))), [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < products.size(); ++i) {
      const int64_t from = std::max(begin, first[i]) - first[i];
      const int64_t to = std::min(end, first[i + 1]) - first[i];
      if (from < to) dense::gemv_cpu(products[i], from, to, isa);
    }
  });
  return results;
}

at::Tensor linear_step(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return linear_steps(x, {{weight, bias}}).front();
}

}  // namespace cyfa::ops
