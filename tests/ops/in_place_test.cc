// Steps change states in place as torch's own in-place operations do: autograd notices, and what may not change is refused untouched.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>

#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/attention.h"
#include "cyfa/ops/dense/short_conv.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

using at::Tensor;

// A step with its tensors by name. `run` reads them from the map, so that a test can replace one.
struct Step {
  std::string name;
  std::map<std::string, Tensor> states, inputs;
  std::function<void(Step&)> run;
};

Step step_of_op(Op op) {
  const Tensors all = make_inputs({.op = op, .T = 1, .norm_weights = false});
  Step step{op_name(op), {}, {}, {}};
  for (const auto& [name, x] : all) {
    if (is_token_input(name)) step.inputs[name] = x.select(1, 0).contiguous();
  }
  if (op == Op::kCyclicFlow) {
    step.states = {{"k", all.at("initial_k")}, {"v", all.at("initial_v")}, {"clock", all.at("initial_clock")}};
    step.inputs["readout_table"] = ops::cyclic_flow_readout_table(all.at("readout"));
    step.run = [](Step& s) {
      const auto& x = s.inputs;
      ops::cyclic_flow_step(
          {x.at("q"), x.at("k"), x.at("v"), x.at("log_alpha"), x.at("delta"), x.at("beta"), x.at("readout_table"), {}, {}},
          {s.states.at("k"), s.states.at("v"), s.states.at("clock")});
    };
    return step;
  }
  const ops::Recurrence& r = *op.recurrence();
  for (const ops::RecurrenceArgument& argument : r.arguments) {
    if (!step.inputs.contains(argument.name)) step.inputs[argument.name] = all.at(argument.name);
  }
  step.states = {{"state", all.at("initial_state")}};
  step.run = [&r](Step& s) {
    ops::RecurrenceInputs in{.q = s.inputs.at("q"), .k = s.inputs.at("k"), .v = s.inputs.at("v")};
    for (const ops::RecurrenceArgument& argument : r.arguments) in.*argument.member = s.inputs.at(argument.name);
    ops::step_recurrence(r, in, s.states.at("state"));
  };
  return step;
}

std::vector<Step> all_steps() {
  std::vector<Step> steps;
  for (const Op op : all_ops()) steps.push_back(step_of_op(op));
  steps.push_back(
      {"short_conv", {{"state", at::randn({2, 3, 8})}}, {{"x", at::randn({2, 8})}, {"weight", at::randn({8, 1, 4})}}, [](Step& s) {
         ops::short_conv_step(s.inputs.at("x"), s.inputs.at("weight"), std::nullopt, s.states.at("state"));
       }});
  steps.push_back({"attention",
                   {{"k", at::randn({2, 64, 2, 8})}, {"v", at::randn({2, 64, 2, 8})}, {"tokens", at::ones({2}, at::kLong)}},
                   {{"q", at::randn({2, 4, 8})}, {"key", at::randn({2, 2, 8})}, {"value", at::randn({2, 2, 8})}},
                   [](Step& s) {
                     ops::AttentionCache cache{s.states.at("k"), s.states.at("v"), s.states.at("tokens")};
                     ops::attention_step(s.inputs.at("q"), s.inputs.at("key"), s.inputs.at("value"), cache, 0);
                   }});
  return steps;
}

// The step with the state `name` replaced is refused, and no state has changed.
void expect_refused(Step step, const std::string& name, const Tensor& replaced, const std::string& word) {
  step.states[name] = replaced;
  std::map<std::string, Tensor> before;
  for (const auto& [state, x] : step.states) before[state] = x.detach().clone();
  try {
    step.run(step);
    ADD_FAILURE() << step.name << " took " << name << ": " << word;
  } catch (const ops::ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
  for (const auto& [state, x] : step.states) EXPECT_TRUE(at::equal(x.detach(), before.at(state))) << step.name << " changed " << state;
}

bool differentiable(const Tensor& x) { return at::isFloatingType(x.scalar_type()); }

TEST(InPlace, AStepCountsAsAChange) {
  for (Step& step : all_steps()) {
    std::map<std::string, int64_t> before, inputs;
    for (const auto& [name, x] : step.states) before[name] = x._version();
    for (const auto& [name, x] : step.inputs) inputs[name] = x._version();
    step.run(step);
    for (const auto& [name, x] : step.states) EXPECT_GT(x._version(), before.at(name)) << step.name << " " << name;
    for (const auto& [name, x] : step.inputs) EXPECT_EQ(x._version(), inputs.at(name)) << step.name << " " << name;
  }
}

TEST(InPlace, ABackwardThatNeedsTheOldStateThrows) {
  for (const Step& fresh : all_steps()) {
    for (const auto& [name, x] : fresh.states) {
      if (!differentiable(x)) continue;
      Step step = fresh;
      const Tensor weight = at::ones_like(x).requires_grad_();
      const Tensor loss = (weight * x).sum();
      step.run(step);
      try {
        loss.backward();
        ADD_FAILURE() << step.name << ": a gradient came out of the changed " << name;
      } catch (const c10::Error& error) {
        EXPECT_NE(std::string(error.what()).find("modified by an inplace operation"), std::string::npos) << error.what();
      }
    }
  }
}

// A state that is the result of recorded operations may change, as in torch, but no gradient passes the change.
TEST(InPlace, AGradientThroughAChangedStateThrows) {
  for (const Step& fresh : all_steps()) {
    for (const auto& [name, x] : fresh.states) {
      if (!differentiable(x)) continue;
      Step step = fresh;
      const Tensor leaf = x.clone().requires_grad_(), state = leaf * 1;
      const Tensor before = state.square().sum();
      step.states[name] = state;
      step.run(step);
      EXPECT_GT(state._version(), 0) << step.name << " " << name;
      EXPECT_ANY_THROW(before.backward()) << step.name << " " << name;
      EXPECT_ANY_THROW(state.sum().backward()) << step.name << " " << name;
    }
  }
}

TEST(InPlace, ALeafThatRequiresAGradientIsRefused) {
  for (const Step& step : all_steps()) {
    for (const auto& [name, x] : step.states) {
      if (!differentiable(x)) continue;
      const Tensor leaf = x.clone().requires_grad_();
      expect_refused(step, name, leaf, "leaf");
      expect_refused(step, name, leaf.view(leaf.sizes()), "leaf");
      Step allowed = step;
      allowed.states[name] = leaf;
      const at::NoGradGuard no_grad;  // as torch: without recording, a leaf may change
      EXPECT_NO_THROW(allowed.run(allowed)) << step.name << " " << name;
    }
  }
}

TEST(InPlace, StatesThatShareMemoryAreRefused) {
  for (const Step& fresh : all_steps()) {
    for (const auto& [name, x] : fresh.states) {
      // With another state: both in one allocation that is too short for them.
      for (const auto& [other, y] : fresh.states) {
        if (other == name || x.scalar_type() != y.scalar_type()) continue;
        const Tensor memory = at::zeros({std::max(x.numel(), y.numel()) + 1}, x.options());
        Step step = fresh;
        step.states[other] = memory.narrow(0, 0, y.numel()).view(y.sizes());
        expect_refused(step, name, memory.narrow(0, 1, x.numel()).view(x.sizes()), "shares memory");
      }
      // With an input. A gate of shape [H] is copied before the state changes, so it may share.
      for (const auto& [input, y] : fresh.inputs) {
        if (y.scalar_type() != x.scalar_type() || input == "log_gamma") continue;
        const Tensor memory = at::zeros({x.numel() + y.numel()}, x.options());
        Step step = fresh;
        step.inputs[input] = memory.narrow(0, x.numel() - 1, y.numel()).view(y.sizes());
        expect_refused(step, name, memory.narrow(0, 0, x.numel()).view(x.sizes()), "shares memory");
      }
    }
  }
}

TEST(InPlace, AStateWhoseElementsShareMemoryIsRefused) {
  for (const Step& step : all_steps()) {
    for (const auto& [name, x] : step.states) {
      Step with = step;
      with.states[name] = at::zeros({1}, x.options()).expand(x.sizes());
      EXPECT_THROW(with.run(with), ops::ArgumentError) << step.name << " " << name;
    }
  }
}

TEST(InPlace, NeighboursInOneAllocationAreFine) {
  Step step = step_of_op(Op::kCyclicFlow);
  const Tensor k = step.states.at("k"), v = step.states.at("v"), memory = at::zeros({k.numel() + v.numel()});
  step.states["k"] = memory.narrow(0, 0, k.numel()).view(k.sizes());
  step.states["v"] = memory.narrow(0, k.numel(), v.numel()).view(v.sizes());
  EXPECT_NO_THROW(step.run(step));
}

TEST(InPlace, InferenceTensorsHaveNoVersionAndStillStep) {
  const c10::InferenceMode inference;
  for (Step& step : all_steps()) {
    for (auto& [name, x] : step.states) x = x.clone();
    EXPECT_NO_THROW(step.run(step)) << step.name;
  }
}

}  // namespace
}  // namespace cyfa::test
