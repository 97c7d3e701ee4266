// Tests decode steps with bf16 states, which are rounded at every step and updated in place: results are close to those with fp32 states.
#include <gtest/gtest.h>

#include "cyfa/ops/common/check.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

TEST(StepState, InHalfPrecisionIsCloseAndInPlace) {
  const OpCase c{.B = 3, .T = 60, .H = 2, .K = 32, .V = 24, .M = 16};
  const Tensors inputs = make_inputs(c);
  const ops::CyclicFlowInputs in = cyclic_flow_inputs(inputs);
  const at::Tensor table = ops::cyclic_flow_readout_table(in.readout);
  const ops::CyclicFlowState first = *in.initial_state;
  const ops::CyclicFlowState wide{first.k.clone(), first.v.clone(), first.clock.clone()};
  const ops::CyclicFlowState narrow{first.k.to(at::kBFloat16), first.v.to(at::kBFloat16), first.clock.clone()};
  const void* memory = narrow.k.data_ptr();
  std::vector<at::Tensor> o[2];
  for (int64_t t = 0; t < c.T; ++t) {
    const auto now = [t](const at::Tensor& x) { return x.select(1, t); };
    const ops::CyclicFlowStepInputs step{now(in.q),    now(in.k), now(in.v),        now(in.log_alpha), now(in.delta),
                                         now(in.beta), table,     in.q_norm_weight, in.k_norm_weight};
    o[0].push_back(ops::cyclic_flow_step(step, wide));
    o[1].push_back(ops::cyclic_flow_step(step, narrow));
  }
  EXPECT_EQ(narrow.k.data_ptr(), memory);
  EXPECT_TRUE(at::equal(narrow.clock, wide.clock));
  const double error = relative_l2(at::stack(o[1]), at::stack(o[0]));
  EXPECT_LT(error, 0.02);
  EXPECT_GT(error, 0);
  EXPECT_LT(relative_l2(narrow.k, wide.k), 0.02);
  EXPECT_LT(relative_l2(narrow.v, wide.v), 0.02);
}

// With eps 0 the norm of a zero row is zero, not NaN, in every path and also backwards.
TEST(StepState, ZeroRowsStayFiniteWithoutAnEps) {
  const OpCase c{.B = 2, .T = 4};
  Tensors inputs = make_inputs(c);
  for (const char* name : {"q", "k"}) inputs.at(name).select(1, 2).zero_();
  const RunOptions options{.norm_eps = 0};
  const Tensors steps = run_steps(c.op, inputs, options);
  for (const ops::Backend backend : {ops::Backend::kPortable, ops::Backend::kReference}) {
    const Tensors whole = run(c.op, inputs, make_output_gradients(c), {.backend = backend, .norm_eps = 0});
    for (const auto& [name, x] : whole) EXPECT_TRUE(at::isfinite(x).all().item<bool>()) << name;
    expect_close(steps, without_gradients(whole));
  }
}

TEST(StepState, OfTwoTypesIsRefused) {
  const OpCase c{.B = 1, .T = 1};
  const Tensors inputs = make_inputs(c);
  const ops::CyclicFlowInputs in = cyclic_flow_inputs(inputs);
  const auto now = [](const at::Tensor& x) { return x.select(1, 0); };
  const ops::CyclicFlowStepInputs step{
      now(in.q), now(in.k), now(in.v), now(in.log_alpha), now(in.delta), now(in.beta), ops::cyclic_flow_readout_table(in.readout), {}, {}};
  const ops::CyclicFlowState& state = *in.initial_state;
  EXPECT_THROW(ops::cyclic_flow_step(step, {state.k.to(at::kBFloat16), state.v.clone(), state.clock.clone()}), ops::ArgumentError);
  EXPECT_THROW(ops::cyclic_flow_step(step, {state.k.to(at::kHalf), state.v.to(at::kHalf), state.clock.clone()}), ops::ArgumentError);
}

}  // namespace
}  // namespace cyfa::test
