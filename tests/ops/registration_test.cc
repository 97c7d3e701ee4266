// Tests the ops in torch's dispatcher: schemas, meta tensors, autograd, and a clear error for second derivatives.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cyfa/ops/common/check.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using CyclicFlowSignature = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                                       const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                                                                       const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                                                       const OptionalTensor&, const OptionalTensor&, std::optional<double>,
                                                                       double, int64_t, int64_t, bool, bool, c10::string_view);

const char* const kKernels[] = {"cyfa::_cyclic_flow_forward", "cyfa::_cyclic_flow_backward", "cyfa::_recurrence_forward",
                                "cyfa::_recurrence_backward", "cyfa::cyclic_flow_step"};

Tensors call_dispatcher(const Tensors& x, const char* backend = "auto", bool final_state = true) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::cyclic_flow", "").typed<CyclicFlowSignature>();
  const auto maybe = [&](const char* name) { return x.contains(name) ? OptionalTensor(x.at(name)) : std::nullopt; };
  const auto [o, k, v, clock] = op.call(x.at("q"), x.at("k"), x.at("v"), x.at("log_alpha"), x.at("delta"), x.at("beta"), x.at("readout"),
                                        maybe("q_norm_weight"), maybe("k_norm_weight"), maybe("initial_k"), maybe("initial_v"),
                                        maybe("initial_clock"), maybe("cu_seqlens"), std::nullopt, 1e-6, 0, 0, true, final_state, backend);
  return {{"o", o}, {"final_k", k}, {"final_v", v}, {"final_clock", clock}};
}

Tensors on_meta(const Tensors& x) {
  Tensors meta;
  for (const auto& [name, t] : x) meta[name] = t.to(at::kMeta);
  return meta;
}

TEST(Registration, SchemasExist) {
  std::vector<std::string> names = {"cyfa::cyclic_flow_readout_table"};
  for (const Op op : all_ops()) names.insert(names.end(), {"cyfa::" + op_name(op), "cyfa::" + op_name(op) + "_step"});
  for (const std::string& name : names) EXPECT_TRUE(c10::Dispatcher::singleton().findSchema({name, ""}).has_value()) << name;
  for (const char* name : kKernels) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
    ASSERT_TRUE(op.has_value()) << name;
    for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta}) {
      EXPECT_TRUE(op->hasKernelForDispatchKey(key)) << name << " " << c10::toString(key);
    }
  }
}

TEST(Registration, StatesOfAStepAreMarkedAsWritten) {
  for (const Op each : all_ops()) {
    const std::string name = "cyfa::" + op_name(each) + "_step";
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
    for (const c10::Argument& argument : op.schema().arguments()) {
      const bool state = argument.name().starts_with("state") || argument.name() == "clock";
      EXPECT_EQ(argument.alias_info() != nullptr && argument.alias_info()->isWrite(), state) << name << " " << argument.name();
    }
  }
}

class RegistrationMeta : public testing::TestWithParam<OpCase> {};

TEST_P(RegistrationMeta, GivesTheShapesAndTypesOfARun) {
  for (const Op op : all_ops()) {
    for (const ops::Backend backend : {ops::Backend::kPortable, ops::Backend::kReference}) {
      OpCase c = GetParam();
      c.op = op;
      SCOPED_TRACE(describe(c));
      const Tensors real = run(op, make_inputs(c), make_output_gradients(c), {.backend = backend});
      const Tensors meta = run(op, on_meta(make_inputs(c)), on_meta(make_output_gradients(c)), {.backend = backend});
      ASSERT_EQ(meta.size(), real.size());
      for (const auto& [name, x] : real) {
        EXPECT_TRUE(meta.at(name).is_meta()) << name;
        EXPECT_EQ(meta.at(name).sizes(), x.sizes()) << name;
        EXPECT_EQ(meta.at(name).strides(), x.strides()) << name;
        EXPECT_EQ(meta.at(name).scalar_type(), x.scalar_type()) << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RegistrationMeta,
                         testing::Values(OpCase{.T = 700}, OpCase{.T = 0},
                                         OpCase{.B = 3, .T = 9, .K = 8, .V = 24, .M = 6, .dtype = at::kBFloat16, .initial_state = false},
                                         OpCase{.T = 9, .dtype = at::kDouble, .norm_weights = false},
                                         OpCase{.lengths = {0, 4, 1, 90}, .H = 3},
                                         OpCase{.lengths = {520, 30}, .H = 1, .dtype = at::kBFloat16, .initial_state = false}),
                         [](const auto& test) { return "Case" + std::to_string(test.index); });

// Tensors saved for backward must have the right shapes on meta tensors too, because torch.compile traces with them.
TEST(Registration, MetaKnowsWhatForwardSaves) {
  using Forward = std::vector<Tensor>(at::TensorList, at::IntArrayRef, double, double, at::IntArrayRef, int64_t, bool, c10::string_view);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_cyclic_flow_forward", "").typed<Forward>();
  for (const OpCase& c : {OpCase{.B = 2, .T = 100}, OpCase{.lengths = {33, 0, 64, 1, 2}}}) {
    for (const auto& [save_scores, final_state] : {std::pair{false, true}, {true, true}, {true, false}}) {
      for (const char* backend : {"portable", "reference"}) {
        const Tensors inputs = make_inputs(c);
        const auto [tensors, places] = packed_inputs(inputs);
        const std::vector<Tensor> real = op.call(tensors, places, 0.25, 1e-6, {16, 2, 2}, save_scores ? 2 : 1, final_state, backend);
        const std::vector<Tensor> meta =
            op.call(packed_inputs(on_meta(inputs)).first, places, 0.25, 1e-6, {16, 2, 2}, save_scores ? 2 : 1, final_state, backend);
        ASSERT_EQ(real.size(), meta.size());
        for (size_t i = 0; i < real.size(); ++i) {
          EXPECT_EQ(real[i].sizes(), meta[i].sizes()) << describe(c) << " output " << i;
          EXPECT_EQ(real[i].scalar_type(), meta[i].scalar_type()) << describe(c) << " output " << i;
        }
      }
    }
  }
}

// The shapes of tensors saved by a GPU backend are also known in builds without its kernels; only running it throws.
TEST(Registration, MetaTracesSm90InEveryBuild) {
  using Forward = std::vector<Tensor>(at::TensorList, at::IntArrayRef, double, double, at::IntArrayRef, int64_t, bool, c10::string_view);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_cyclic_flow_forward", "").typed<Forward>();
  const OpCase c{.B = 2, .T = 300, .K = 64, .V = 64, .M = 64, .dtype = at::kBFloat16};
  const auto [tensors, places] = packed_inputs(on_meta(make_inputs(c)));
  for (const int64_t keep : {0, 1, 2}) {
    const std::vector<Tensor> out = op.call(tensors, places, 0.25, 1e-6, {16, 2, 2}, keep, true, "sm90");
    EXPECT_EQ(out[0].sizes(), at::IntArrayRef({c.B, c.T, c.H, c.V}));
    int64_t saved = 0;
    for (size_t i = 4; i < out.size(); ++i) saved += out[i].numel();
    EXPECT_EQ(saved > 0, keep == 2) << keep;
  }
}

TEST(Registration, MetaRefusesWhatARunRefuses) {
  Tensors inputs = on_meta(make_inputs({}));
  inputs["k"] = at::empty({1, 2, 3, 4}, at::TensorOptions(at::kMeta));
  EXPECT_THROW(run(Op::kCyclicFlow, inputs, {}), ops::ArgumentError);
}

TEST(Registration, TheDispatchersOpIsTheCppOp) {
  for (const OpCase& c : {OpCase{}, OpCase{.lengths = {5, 0, 70, 1}}, OpCase{.norm_weights = false, .initial_state = false}}) {
    for (const char* backend : {"auto", "portable", "reference"}) {
      SCOPED_TRACE(describe(c) + " " + backend);
      Tensors leaves = make_inputs(c);
      std::vector<std::string> names;
      std::vector<Tensor> roots;
      for (auto& [name, x] : leaves) {
        if (name == "cu_seqlens") continue;
        x.requires_grad_();
        names.push_back(name);
        roots.push_back(x);
      }
      const Tensors out = call_dispatcher(leaves, backend);
      std::vector<Tensor> outputs, upstream;
      for (const auto& [name, gradient] : make_output_gradients(c)) {
        outputs.push_back(out.at(name));
        upstream.push_back(gradient);
      }
      const std::vector<Tensor> gradients = torch::autograd::grad(outputs, roots, upstream);
      const Tensors want = run(c, {.backend = ops::parse_backend(backend)});
      for (const auto& [name, x] : out) EXPECT_TRUE(same_bits(x.detach(), want.at(name))) << name;
      for (size_t i = 0; i < names.size(); ++i) EXPECT_TRUE(same_bits(gradients[i], want.at("d_" + names[i]))) << names[i];
    }
  }
}

TEST(Registration, AFinalStateThatIsNotWantedHasNoElements) {
  const Tensors out = call_dispatcher(make_inputs({}), "auto", false);
  for (const auto& [name, x] : out) EXPECT_EQ(x.numel() > 0, name == "o") << name;
}

TEST(Registration, TheDispatchersOpRefusesToo) {
  Tensors inputs = make_inputs({});
  EXPECT_THROW(call_dispatcher(inputs, "sm90"), ops::ArgumentError);
  EXPECT_THROW(call_dispatcher(inputs, "fast"), ops::ArgumentError);
  inputs.erase("initial_v");
  EXPECT_THROW(call_dispatcher(inputs), ops::ArgumentError);
}

TEST(Registration, AnOutputWithoutInputsThatAskHasNoGraph) {
  const Tensors out = call_dispatcher(make_inputs({}));
  for (const auto& [name, x] : out) EXPECT_FALSE(x.requires_grad()) << name;
}

// The hand-derived backward is not differentiable: a second derivative must throw instead of giving a wrong value.
TEST(Registration, ASecondDerivativeIsAnError) {
  for (const Op op : all_ops()) {
    for (const ops::Backend backend : {ops::Backend::kPortable, ops::Backend::kReference}) {
      Tensors leaves = make_inputs({.op = op});
      for (auto& [name, x] : leaves) x.requires_grad_();
      const Tensor o = call(op, leaves, {.backend = backend}).at("o");
      const Tensor first = torch::autograd::grad({o.square().sum()}, {leaves.at("q")}, {}, true, /*create_graph=*/true)[0];
      SCOPED_TRACE(op_name(op));
      EXPECT_TRUE(first.requires_grad()) << "the graph ends at the first derivative: a second one would be silently wrong";
      if (!first.requires_grad()) continue;
      const Tensor upstream = at::ones_like(o).requires_grad_();
      const Tensor again = torch::autograd::grad({o}, {leaves.at("q")}, {upstream}, true, /*create_graph=*/true)[0];
      EXPECT_ANY_THROW(torch::autograd::grad({again.sum()}, {upstream}, {}, true, false, /*allow_unused=*/true));
      try {
        torch::autograd::grad({first.square().sum()}, {leaves.at("k")}, {}, true, false, /*allow_unused=*/true);
        ADD_FAILURE() << "a second derivative came out";
      } catch (const std::exception& error) {
        const std::string message = error.what();
        EXPECT_NE(message.find(op_name(op) + ": the second derivative is not implemented"), std::string::npos) << message;
      }
    }
  }
}

TEST(Registration, BackwardTwiceThroughAKeptGraphGivesTheSameBits) {
  Tensors leaves = make_inputs({.T = 150});
  for (auto& [name, x] : leaves) x.requires_grad_();
  const Tensor loss = ops::cyclic_flow(cyclic_flow_inputs(leaves)).o.sum();
  const Tensor first = torch::autograd::grad({loss}, {leaves.at("q")}, {}, /*retain_graph=*/true)[0];
  const Tensor second = torch::autograd::grad({loss}, {leaves.at("q")}, {}, /*retain_graph=*/true)[0];
  EXPECT_TRUE(same_bits(first, second));
}

// Torch's version counters detect an input that is modified in place between forward and backward.
TEST(Registration, AnInputChangedBeforeBackwardIsNoticed) {
  for (const char* name : {"q", "v", "log_alpha", "delta", "initial_k"}) {
    Tensors leaves = make_inputs({});
    leaves.at("readout").requires_grad_();
    const Tensor loss = ops::cyclic_flow(cyclic_flow_inputs(leaves)).o.sum();
    leaves.at(name).mul_(0.5);
    EXPECT_ANY_THROW(loss.backward()) << name;
  }
}

}  // namespace
}  // namespace cyfa::test
