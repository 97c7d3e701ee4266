// Tests the ops around a mixer's operator (norms, SwiGLU, short convolution) and all their gradients against double, for any device and
// type.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <functional>
#include <string>

#include "cyfa/ops/dense/dense.h"
#include "cyfa/ops/dense/short_conv.h"

namespace cyfa::ops::neighbours {

using Tensors = std::vector<at::Tensor>;

inline double distance(const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor a = got.detach().cpu().to(at::kDouble), b = wanted.detach().cpu().to(at::kDouble);
  if (a.sizes() != b.sizes()) return 1e9;
  if (b.numel() == 0) return 0;
  return ((a - b).norm() / b.norm().clamp_min(1e-300)).item<double>();
}

// Compares results and gradients of f for inputs in `type` (weights stay fp32, as in a model) with those for the same values in double, and
// expects equal calls to give bitwise equal gradients.
inline void compare(const std::string& name, const Tensors& inputs, const std::vector<bool>& is_weight, at::Device device,
                    at::ScalarType type, double limit, const std::function<Tensors(const Tensors&)>& f) {
  Tensors narrow, wide;
  for (size_t i = 0; i < inputs.size(); ++i) {
    narrow.push_back(inputs[i].to(device).to(is_weight[i] ? at::kFloat : type).detach().requires_grad_());
    wide.push_back(narrow.back().detach().cpu().to(at::kDouble).requires_grad_());
  }
  const Tensors got = f(narrow), wanted = f(wide);
  Tensors got_grads, wanted_grads;
  for (const at::Tensor& y : got) got_grads.push_back(at::randn(y.sizes()).to(y.device()).to(y.scalar_type()));
  for (const at::Tensor& g : got_grads) wanted_grads.push_back(g.cpu().to(at::kDouble));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LT(distance(got[i], wanted[i]), limit) << name << " result " << i;
  const auto got_in = torch::autograd::grad(got, narrow, got_grads), wanted_in = torch::autograd::grad(wanted, wide, wanted_grads);
  for (size_t i = 0; i < got_in.size(); ++i) {
    EXPECT_EQ(got_in[i].scalar_type(), narrow[i].scalar_type()) << name << " gradient " << i;
    EXPECT_LT(distance(got_in[i], wanted_in[i]), limit) << name << " gradient " << i;
  }
  const auto again = torch::autograd::grad(f(narrow), narrow, got_grads);
  for (size_t i = 0; i < got_in.size(); ++i)
    EXPECT_TRUE(at::equal(again[i], got_in[i])) << name << ": equal calls, other bits, gradient " << i;
}

inline void check_all(at::Device device, at::ScalarType type, double limit) {
  at::manual_seed(5);
  for (const int64_t width : {8, 37, 64, 256, 1024, 1536, 2048}) {
    for (const int64_t rows : {1, 3, 700}) {
      const std::string name = " " + std::to_string(rows) + " x " + std::to_string(width);
      const at::Tensor x = at::randn({rows, width}) * 3, gate = at::randn({rows, width}) * 2, weight = at::randn({width});
      compare("rms_norm" + name, {x, weight}, {false, true}, device, type, limit,
              [](const Tensors& t) { return Tensors{rms_norm(t[0], t[1], 1e-6)}; });
      compare("gated_rms_norm" + name, {x, weight, gate}, {false, true, false}, device, type, limit,
              [](const Tensors& t) { return Tensors{gated_rms_norm(t[0], t[1], 1e-6, t[2])}; });
      compare("swiglu" + name, {gate, x}, {false, false}, device, type, limit,
              [](const Tensors& t) { return Tensors{swiglu(t[0], t[1])}; });
      compare("silu" + name, {gate}, {false}, device, type, limit, [](const Tensors& t) { return Tensors{ops::silu(t[0])}; });
    }
  }
  const at::Tensor borders = at::tensor({0, 5, 6, 6, 8, 308, 372, 501}, at::kLong);
  for (const int64_t D : {8, 37, 1040}) {
    for (const int64_t W : {1, 2, 3, 4, 6}) {
      const std::string name = "short_conv D " + std::to_string(D) + " W " + std::to_string(W);
      const at::Tensor x = at::randn({1, 501, D}), weight = at::randn({D, 1, W}), bias = at::randn({D}), state = at::randn({7, W - 1, D});
      compare(name + " packed", {x, weight, bias, state}, {false, true, true, false}, device, type, limit, [&](const Tensors& t) {
        const ShortConvOutput out = short_conv(t[0], t[1], t[2], t[3], borders);
        return Tensors{out.y, out.final_state};
      });
      compare(name + " plain", {at::randn({3, 200, D}), weight}, {false, true}, device, type, limit,
              [](const Tensors& t) { return Tensors{short_conv(t[0], t[1], std::nullopt, std::nullopt, std::nullopt).y}; });
    }
  }
}

}  // namespace cyfa::ops::neighbours
