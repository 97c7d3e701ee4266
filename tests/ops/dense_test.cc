// Tests the elementwise ops, norms and short convolution around a mixer against torch's own ops.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/dense.h"
#include "cyfa/ops/dense/linear_in_blocks.h"
#include "cyfa/ops/dense/short_conv.h"
#include "tests/ops/neighbours.h"

namespace cyfa::ops {
namespace {

double rel(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return (x - y).norm().item<double>() / std::max(1e-30, y.norm().item<double>());
}

TEST(Dense, LinearTakesNarrowWeights) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::randn({2, 5, 40}), w = at::randn({5000, 40}).to(at::kBFloat16), bias = at::randn({5000});
  EXPECT_LT(rel(ops::linear(x, w, bias), at::linear(x, w.to(at::kFloat), bias)), 1e-6);
  EXPECT_EQ(ops::linear(at::randn({0, 40}), w).sizes(), at::IntArrayRef({0, 5000}));
}

// In blocks, a row has the same bits alone and among others, and with any number of threads; also of widths that fill no panel.
TEST(Dense, LinearInBlocksDoesNotDependOnOtherRows) {
  const at::NoGradGuard no_grad;
  const int threads = at::get_num_threads();
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{1100, 96}, {30, 1000}, {1, 8}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << out << " from " << in << " " << type);
      const at::Tensor x = at::randn({2, 75, in}), w = at::randn({out, in}).to(type), bias = at::randn({out});
      const at::Tensor plain = ops::linear(x, w, bias);
      const LinearInBlocks in_blocks;
      const at::Tensor y = ops::linear(x, w, bias);
      EXPECT_LT(rel(y, plain), 1e-6);
      for (const int64_t rows : {1, 63, 64, 65}) {
        for (const int used : {1, 3}) {
          at::set_num_threads(used);
          EXPECT_TRUE(at::equal(ops::linear(x[1].narrow(0, 7, rows), w, bias), y[1].narrow(0, 7, rows))) << rows << " rows";
        }
      }
      at::set_num_threads(threads);
      EXPECT_EQ(ops::linear(x.narrow(1, 0, 0), w, bias).sizes(), at::IntArrayRef({2, 0, out}));
    }
  }
  // Where a gradient is recorded, the product is the usual one.
  const LinearInBlocks in_blocks;
  const at::AutoGradMode grad(true);
  const at::Tensor w = at::randn({4, 3}).requires_grad_();
  EXPECT_TRUE(ops::linear(at::randn({2, 3}), w).requires_grad());
}

TEST(Dense, StepsAreLinearAndDoNotDependOnTheBatch) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({9, 70}), a = at::randn({33, 70}).to(type), b = at::randn({3, 70}).to(type), bias = at::randn({3});
    const std::vector<at::Tensor> y = linear_steps(x, {{a, {}}, {b, bias}});
    EXPECT_LT(rel(y[0], at::linear(x, a.to(at::kFloat))), 1e-6);
    EXPECT_LT(rel(y[1], at::linear(x, b.to(at::kFloat), bias)), 1e-6);
    for (int64_t i = 0; i < x.size(0); ++i) {
      EXPECT_TRUE(at::equal(linear_step(x.narrow(0, i, 1), a), y[0].narrow(0, i, 1)));
    }
  }
}

TEST(Dense, StepRefusesOtherShapes) {
  EXPECT_THROW(linear_step(at::randn({2, 3}), at::randn({4, 5})), ArgumentError);
  EXPECT_THROW(linear_step(at::randn({3}), at::randn({4, 3})), ArgumentError);
  EXPECT_THROW(linear_step(at::randn({2, 3}), at::randn({4, 3}), at::randn({3})), ArgumentError);
}

// Row functions match torch, and each row's result is bitwise independent of the batch. Includes values for which exp overflows.
TEST(Dense, RowFunctionsMatchTorchAndDoNotDependOnTheBatch) {
  const at::NoGradGuard no_grad;
  at::Tensor x = at::randn({7, 37}) * 20, y = at::randn({7, 37});
  x[0][0] = 300;
  x[1][1] = -300;
  const at::Tensor weight = at::randn({37});
  EXPECT_LT(rel(ops::swiglu(x, y), at::silu(x.to(at::kDouble)) * y), 1e-6);
  EXPECT_LT(rel(ops::silu(x), at::silu(x.to(at::kDouble))), 1e-6);
  EXPECT_LT(rel(ops::rms_norm(x, weight, 1e-6), at::rms_norm(x.to(at::kDouble), {37}, weight.to(at::kDouble), 1e-6)), 1e-6);
  const at::Tensor gated = at::rms_norm(x.to(at::kDouble), {37}, weight.to(at::kDouble), 1e-6) * at::sigmoid(y.to(at::kDouble));
  EXPECT_LT(rel(gated_rms_norm(x, weight, 1e-6, y), gated), 1e-6);
  const at::Tensor dt_bias = at::randn({37}), A_log = at::randn({37});
  EXPECT_LT(rel(sigmoid_gate(x), at::sigmoid(x.to(at::kDouble))), 1e-6);
  EXPECT_LT(rel(decay_gate(x, dt_bias, A_log), -at::exp(A_log.to(at::kDouble)) * at::softplus((x + dt_bias).to(at::kDouble))), 1e-6);
  for (int64_t i = 0; i < 7; ++i) {
    const at::Tensor one = x.narrow(0, i, 1), other = y.narrow(0, i, 1);
    EXPECT_TRUE(at::equal(ops::swiglu(one, other), ops::swiglu(x, y).narrow(0, i, 1)));
    EXPECT_TRUE(at::equal(ops::rms_norm(one, weight, 1e-6), ops::rms_norm(x, weight, 1e-6).narrow(0, i, 1)));
    EXPECT_TRUE(at::equal(gated_rms_norm(one, weight, 1e-6, other), gated_rms_norm(x, weight, 1e-6, y).narrow(0, i, 1)));
    EXPECT_TRUE(at::equal(sigmoid_gate(one), sigmoid_gate(x).narrow(0, i, 1)));
    EXPECT_TRUE(at::equal(decay_gate(one, dt_bias, A_log), decay_gate(x, dt_bias, A_log).narrow(0, i, 1)));
  }
}

// Results and gradients of the CPU kernels, run as several parallel tasks, against double.
TEST(Dense, NeighboursAndTheirGradients) { neighbours::check_all(at::kCPU, at::kFloat, 2e-6); }
// The same in bf16, for which there are no kernels.
TEST(Dense, NeighboursInHalfPrecision) { neighbours::check_all(at::kCPU, at::kBFloat16, 2e-2); }

// torch's conv1d on one sequence, with the tokens `past` prepended.
at::Tensor plain_conv(const at::Tensor& past, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor rows = at::cat({past, x}).t().unsqueeze(0);
  return at::conv1d(rows, weight, bias, 1, at::IntArrayRef(0), 1, weight.size(0)).squeeze(0).t();
}

TEST(ShortConv, PackedIsSeparateIsTorchsConvolution) {
  const int64_t D = 6, W = 4;
  const std::vector<int64_t> lengths = {5, 1, 0, 2, 9};
  std::vector<int64_t> borders = {0};
  for (const int64_t n : lengths) borders.push_back(borders.back() + n);
  const auto options = at::TensorOptions(at::kDouble);
  at::Tensor x = at::randn({1, borders.back(), D}, options).requires_grad_(), weight = at::randn({D, 1, W}, options).requires_grad_(),
             bias = at::randn({D}, options).requires_grad_(), state = at::randn({5, W - 1, D}, options).requires_grad_();
  const ShortConvOutput packed = short_conv(x, weight, bias, state, at::tensor(borders, at::kLong));
  std::vector<at::Tensor> parts, finals;
  for (size_t n = 0; n < lengths.size(); ++n) {
    const auto i = static_cast<int64_t>(n);
    const at::Tensor own = x[0].narrow(0, borders[n], lengths[n]);
    if (lengths[n] > 0) parts.push_back(plain_conv(state[i], own, weight, bias));
    finals.push_back(at::cat({state[i], own}).narrow(0, lengths[n], W - 1));
    const ShortConvOutput alone = short_conv(own.unsqueeze(0), weight, bias, state.narrow(0, i, 1), std::nullopt);
    EXPECT_LT(rel(packed.y[0].narrow(0, borders[n], lengths[n]), alone.y[0]), 1e-15);
    EXPECT_TRUE(at::equal(alone.final_state[0], finals.back()));
  }
  EXPECT_LT(rel(packed.y[0], at::cat(parts)), 1e-14);
  EXPECT_TRUE(at::equal(packed.final_state, at::stack(finals)));
  const at::Tensor dy = at::randn_like(packed.y), df = at::randn_like(packed.final_state);
  const std::vector<at::Tensor> leaves = {x, weight, bias, state};
  const auto got = torch::autograd::grad({packed.y, packed.final_state}, leaves, {dy, df});
  const auto wanted = torch::autograd::grad({at::cat(parts).unsqueeze(0), at::stack(finals)}, leaves, {dy, df});
  for (size_t i = 0; i < leaves.size(); ++i) EXPECT_LT(rel(got[i], wanted[i]), 1e-14);
}

TEST(ShortConv, StepsAreTheSequence) {
  for (const int64_t W : {1, 2, 4}) {
    const at::NoGradGuard no_grad;
    const int64_t B = 3, T = 7, D = 10;
    const at::Tensor x = at::randn({B, T, D}), weight = at::randn({D, 1, W}), bias = at::randn({D}), initial = at::randn({B, W - 1, D});
    const at::Tensor before = initial.clone();
    const ShortConvOutput all = short_conv(x, weight, bias, initial, std::nullopt);
    EXPECT_TRUE(at::equal(before, initial));
    at::Tensor state = initial.clone();
    for (int64_t t = 0; t < T; ++t) EXPECT_LT(rel(short_conv_step(x.select(1, t), weight, bias, state), all.y.select(1, t)), 1e-6) << W;
    EXPECT_TRUE(at::equal(state, all.final_state));
    EXPECT_EQ(short_conv(x.narrow(1, 0, 0), weight, bias, initial, std::nullopt).y.size(1), 0);
  }
}

TEST(ShortConv, RefusesOtherShapes) {
  const at::Tensor x = at::randn({2, 5, 6}), weight = at::randn({6, 1, 4});
  EXPECT_THROW(short_conv(x, at::randn({5, 1, 4}), {}, {}, {}), ArgumentError);
  EXPECT_THROW(short_conv(x, weight, at::randn({5}), {}, {}), ArgumentError);
  EXPECT_THROW(short_conv(x, weight, {}, at::randn({2, 4, 6}), {}), ArgumentError);
  EXPECT_THROW(short_conv(x, weight, {}, {}, at::tensor({0, 5}, at::kLong)), ArgumentError);
  EXPECT_THROW(short_conv(x.narrow(0, 0, 1), weight, {}, {}, at::tensor({0, 6}, at::kLong)), ArgumentError);
  at::Tensor state = at::randn({2, 2, 6});
  EXPECT_THROW(short_conv_step(x.select(1, 0), weight, {}, state), ArgumentError);
}

}  // namespace
}  // namespace cyfa::ops
