// torch.autocast changes nothing: every op gives the same bits inside and outside, forward, backward and step.
#include <gtest/gtest.h>

#include "cyfa/ops/dense/attention.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/ops/dense/dense.h"
#include "cyfa/ops/dense/short_conv.h"
#include "tests/ops/autocast.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class ContractAutocast : public testing::TestWithParam<Op> {};

INSTANTIATE_TEST_SUITE_P(Ops, ContractAutocast, testing::ValuesIn(all_ops()), [](const auto& test) { return op_label(test.param); });

std::vector<OpCase> cases_of(Op op) {
  std::vector<OpCase> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (OpCase c : {OpCase{.T = 70}, OpCase{.lengths = {30, 0, 1, 90}, .H = 3, .K = 32, .V = 24}}) {
      c.op = op;
      c.dtype = dtype;
      cases.push_back(c);
    }
  }
  return cases;
}

TEST(Autocast, IsOnInTheseTests) {
  const at::Tensor x = at::ones({2, 2});
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kFloat);
  const Autocast on(at::kCPU);
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kBFloat16);
}

TEST_P(ContractAutocast, ForwardAndBackwardAreTheSame) {
  for (const OpCase& c : cases_of(GetParam())) {
    SCOPED_TRACE(describe(c));
    const Tensors outside = run(c);
    const Autocast on(test_device().type());
    expect_same_bits(run(c), outside);
  }
}

// Autocast around one of the two alone, as training loops have it.
TEST_P(ContractAutocast, OfForwardOrOfBackwardAloneIsTheSame) {
  for (const OpCase& c : cases_of(GetParam())) {
    SCOPED_TRACE(describe(c));
    const Tensors inputs = make_inputs(c), gradients = make_output_gradients(c), outside = run(c);
    const auto around_forward = [&](const Tensors& x) {
      const Autocast on(test_device().type());
      return call(c.op, x);
    };
    expect_same_bits(differentiate(around_forward, inputs, gradients), outside);
    const Autocast on(test_device().type());
    const auto outside_forward = [&](const Tensors& x) {
      const Autocast off(test_device().type(), false);
      return call(c.op, x);
    };
    expect_same_bits(differentiate(outside_forward, inputs, gradients), outside);
  }
}

TEST_P(ContractAutocast, StepsAreTheSame) {
  for (OpCase c : cases_of(GetParam())) {
    if (!c.lengths.empty() || c.dtype == at::kDouble) continue;  // a step takes one token of each sequence, and fp32 states
    c.T = 5;
    SCOPED_TRACE(describe(c));
    const Tensors inputs = moved_to(make_inputs(c), test_device());
    const Tensors outside = moved_to(run_steps(c.op, inputs), at::kCPU);
    const Autocast on(test_device().type());
    expect_same_bits(moved_to(run_steps(c.op, inputs), at::kCPU), outside);
  }
}

TEST(Autocast, TheReadoutTableAndTheSlotsAreTheSame) {
  const Tensors inputs = make_inputs({});
  const auto table = [&] { return ops::cyclic_flow_readout_table(inputs.at("readout")); };
  const auto slots = [&] { return ops::cyclic_flow_slots(inputs.at("initial_v"), inputs.at("initial_clock")); };
  const at::Tensor want_table = table(), want_slots = slots();
  const Autocast on(at::kCPU);
  EXPECT_TRUE(same_bits(table(), want_table));
  EXPECT_TRUE(same_bits(slots(), want_slots));
}

TEST(Autocast, DenseFunctionsAreTheSame) {
  const at::Tensor x = at::randn({2, 9, 16}), weight = at::randn({24, 16}), bias = at::randn({24}), norm = at::randn({16});
  const at::Tensor gate = at::randn({2, 9, 16}), taps = at::randn({16, 1, 4}), heads = at::randn({2, 9, 4, 8}), targets = at::arange(18);
  const auto results = [&] {
    ops::AttentionCache cache = ops::attention({heads, heads, heads, {}, {}, 0}).cache;
    at::Tensor tail = at::zeros({2, 3, 16});
    const auto first = [](const at::Tensor& y) { return y.select(1, 0); };
    return std::vector<at::Tensor>{ops::linear(x, weight, bias),
                                   ops::linear(x, weight.to(at::kBFloat16), bias),
                                   ops::linear_step(first(x), weight, bias),
                                   ops::rms_norm(x, norm, 1e-6),
                                   ops::gated_rms_norm(x, norm, 1e-6, gate),
                                   ops::rms_norm(x.to(at::kBFloat16), norm, 1e-6),
                                   ops::swiglu(x, gate),
                                   ops::sigmoid_gate(x),
                                   ops::decay_gate(x, norm, norm),
                                   ops::short_conv(x, taps, std::nullopt, std::nullopt, std::nullopt).y,
                                   ops::short_conv_step(first(x), taps, std::nullopt, tail),
                                   ops::attention({heads, heads, heads, {}, {}, 0}).o,
                                   ops::attention({heads, heads, heads, {}, {}, 3}).o,
                                   ops::attention_step(first(heads), first(heads), first(heads), cache, 0),
                                   ops::linear_cross_entropy(x.flatten(0, 1), weight, targets)};
  };
  const std::vector<at::Tensor> outside = results();
  const Autocast on(at::kCPU);
  const std::vector<at::Tensor> inside = results();
  for (size_t i = 0; i < outside.size(); ++i) EXPECT_TRUE(same_bits(inside[i], outside[i])) << i;
}

}  // namespace
}  // namespace cyfa::test
