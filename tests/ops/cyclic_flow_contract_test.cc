// Tests of cyclic_flow beyond those for all ops (op_contract_test.cc): slots, clock, norms, decode step and backend selection.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "cyfa/ops/common/check.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

using ops::Backend;

class CyclicFlow : public testing::TestWithParam<at::ScalarType> {
 protected:
  OpCase make(OpCase c) const {
    c.dtype = GetParam();
    return c;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, CyclicFlow, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& test) { return dtype_label(test.param); });

TEST_P(CyclicFlow, MatchesReferenceForEveryNumberOfSlots) {
  for (const int64_t M : {2, 4, 6, 16, 64, 128, 256}) {
    for (const auto& [K, V] : {std::pair<int64_t, int64_t>{16, 16}, {24, 40}, {40, 8}}) {
      for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {20, 0, 1, 24}}) {
        const OpCase c = make({.B = 2, .T = 45, .lengths = lengths, .H = 3, .K = K, .V = V, .M = M, .seed = static_cast<uint64_t>(M)});
        SCOPED_TRACE(describe(c));
        expect_close(run(c, {.chunk = 16}), judge(c));
      }
    }
  }
}

// The head size of the published models: K = V = 256, M = 128.
TEST_P(CyclicFlow, MatchesReferenceForThePublishedHead) {
  const OpCase c = make({.B = 1, .T = 150, .H = 1, .K = 256, .V = 256, .M = 128});
  expect_close(run(c), judge(c));
}

TEST_P(CyclicFlow, EachNormAlone) {
  const OpCase c = make({});
  for (const char* absent : {"q_norm_weight", "k_norm_weight"}) {
    Tensors inputs = make_inputs(c);
    inputs.erase(absent);
    SCOPED_TRACE(std::string("without ") + absent);
    expect_close(run(c.op, inputs, make_output_gradients(c)), judge(c.op, inputs, make_output_gradients(c)));
  }
}

TEST_P(CyclicFlow, ScaleAndEpsilonAreUsed) {
  const OpCase c = make({});
  const Tensors inputs = make_inputs(c);
  inputs.at("q").mul_(1e-3);  // small enough that norm_eps matters
  inputs.at("k").mul_(1e-3);
  const Tensors gradients = make_output_gradients(c);
  for (const double scale : {0.0, -0.5, 2.0}) {
    for (const double norm_eps : {0.0, 1e-6, 1e-2}) {
      SCOPED_TRACE("scale " + std::to_string(scale) + " eps " + std::to_string(norm_eps));
      const RunOptions options{.scale = scale, .norm_eps = norm_eps};
      expect_close(run(c.op, inputs, gradients, options), judge(c.op, inputs, gradients, options));
    }
  }
}

TEST_P(CyclicFlow, RowsOfZerosHaveANorm) {
  const OpCase c = make({});
  const Tensors inputs = make_inputs(c);
  const Tensors gradients = make_output_gradients(c);
  inputs.at("q").narrow(1, 3, 5).zero_();
  inputs.at("k").narrow(1, 6, 9).zero_();
  expect_close(run(c.op, inputs, gradients), judge(c.op, inputs, gradients));
}

// At a clock of 1e6 the spacing of doubles is 1.2e-10. Two orders of summing the increments differ by a few spacings, and the phase error
// is at most pi times that. Hence the limit of 1e-8 in fp64; fp32 keeps its limit.
constexpr double kLargeClockFp64 = 1e-8;

TEST_P(CyclicFlow, ClocksOfAMillionAreExact) {
  for (const double clock : {1e6, -1e6, 123456789.0}) {
    for (const int64_t M : {6, 16, 128}) {
      const OpCase c = make({.T = 100, .M = M, .clock = clock});
      SCOPED_TRACE(describe(c) + " clock " + std::to_string(clock));
      // Beyond 1e6 the spacing of doubles grows in proportion to the clock.
      const double limit = kLargeClockFp64 * std::max(1.0, std::abs(clock) / 1e6);
      expect_close(run(c), judge(c), GetParam() == at::kDouble ? std::optional(limit) : std::nullopt);
    }
  }
}

// P has period m: subtracting a multiple of m from the clock changes nothing but the clock.
TEST_P(CyclicFlow, TheClockWrapsModuloM) {
  for (const int64_t M : {6, 16, 128}) {
    const OpCase c = make({.T = 100, .M = M, .clock = 1e6});
    SCOPED_TRACE(describe(c));
    const Tensors inputs = make_inputs(c);
    Tensors wrapped = clone(inputs);
    wrapped["initial_clock"] = inputs.at("initial_clock").remainder(static_cast<double>(M - 1));
    const at::Tensor taken = inputs.at("initial_clock") - wrapped.at("initial_clock");
    Tensors near = run(c.op, wrapped, make_output_gradients(c));
    near.at("final_clock").add_(taken);
    expect_close(run(c), near, GetParam() == at::kDouble ? std::optional(kLargeClockFp64) : std::nullopt);
  }
}

TEST_P(CyclicFlow, ClocksMayStandStillRunFastOrRunBack) {
  const OpCase c = make({.T = 70});
  for (const double rate : {0.0, 40.0, -0.7}) {
    Tensors inputs = make_inputs(c);
    inputs["delta"] = inputs.at("delta") * rate;
    SCOPED_TRACE("delta times " + std::to_string(rate));
    expect_close(run(c.op, inputs, make_output_gradients(c), {.chunk = 16}), judge(c.op, inputs, make_output_gradients(c)));
  }
}

TEST_P(CyclicFlow, TheClockMayComeInFp32) {
  const OpCase c = make({});
  Tensors inputs = make_inputs(c);
  inputs["initial_clock"] = inputs.at("initial_clock").to(at::kFloat);
  const Tensors got = run(c.op, inputs, make_output_gradients(c));
  EXPECT_EQ(got.at("final_clock").scalar_type(), at::kDouble);
  EXPECT_EQ(got.at("d_initial_clock").scalar_type(), at::kFloat);
  expect_close(got, judge(c.op, inputs, make_output_gradients(c)));
}

TEST_P(CyclicFlow, ThePaddingRowStaysZero) {
  for (const bool state : {false, true}) {
    const Tensors out = run(make({.T = 70, .initial_state = state}));
    EXPECT_EQ(out.at("final_k").select(-1, 1).abs().max().item<double>(), 0.0);
    EXPECT_EQ(out.at("final_v").select(-2, 1).abs().max().item<double>(), 0.0);
  }
}

// Weights of another type than q are used without conversion, and their gradients have their own type.
TEST_P(CyclicFlow, GatesAndWeightsMayHaveAnotherType) {
  for (const at::ScalarType gate : {at::kFloat, at::kDouble, at::kBFloat16}) {
    OpCase c = make({.T = 70});
    c.gate_dtype = gate;
    SCOPED_TRACE(dtype_label(gate));
    const Tensors got = run(c);
    EXPECT_EQ(got.at("d_beta").scalar_type(), gate);
    EXPECT_EQ(got.at("d_readout").scalar_type(), gate);
    EXPECT_EQ(got.at("d_q_norm_weight").scalar_type(), gate);
    expect_close(got, judge(c));
  }
}

// On a CPU the portable path processes one sequence at a time, on a GPU many in parallel (lanes). Here the number of lanes is set
// explicitly.
TEST_P(CyclicFlow, SequencesMayBeWalkedSideBySide) {
  using OptionalList = c10::List<std::optional<at::Tensor>>;
  using Forward =
      std::vector<at::Tensor>(at::TensorList, at::IntArrayRef, double, double, at::IntArrayRef, int64_t, bool, c10::string_view);
  using Backward = std::vector<at::Tensor>(at::TensorList, at::IntArrayRef, at::TensorList, const OptionalList&, double, double,
                                           at::IntArrayRef, int64_t, c10::string_view);
  const auto forward = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_cyclic_flow_forward", "").typed<Forward>();
  const auto backward = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_cyclic_flow_backward", "").typed<Backward>();
  const std::vector<std::string> output_names = {"o", "final_k", "final_v", "final_clock"};
  const auto list = [](const Tensors& x, const std::vector<std::string>& names) {
    OptionalList optionals;
    for (const std::string& name : names) optionals.push_back(x.contains(name) ? std::optional(x.at(name)) : std::nullopt);
    return optionals;
  };
  const std::vector<int64_t> batches[] = {{}, {5, 0, 1, 30, 64, 33}, {0, 0}, {40, 40, 40}, {7, 40, 7}, {1, 1, 90}};
  for (const std::vector<int64_t>& lengths : batches) {
    for (const bool state : {false, true}) {
      const OpCase c = make({.B = 5, .T = 70, .lengths = lengths, .K = 8, .V = 6, .M = 8, .initial_state = state});
      const Tensors inputs = make_inputs(c);
      const Tensors gradients = make_output_gradients(c);
      const double scale = 1.0 / std::sqrt(static_cast<double>(c.K));
      const Tensors want = judge(c);
      for (const int64_t lanes : {1, 2, 3, 8}) {
        for (const bool save_scores : {false, true}) {
          SCOPED_TRACE(describe(c) + " lanes " + std::to_string(lanes));
          const std::vector<int64_t> size = {16, 2, lanes};
          const auto [tensors, places] = packed_inputs(inputs);
          const std::vector<at::Tensor> out = forward.call(tensors, places, scale, 1e-6, size, save_scores ? 2 : 1, true, "portable");
          const std::vector<at::Tensor> saved(out.begin() + 4, out.end());
          const std::vector<at::Tensor> in_gradients =
              backward.call(tensors, places, saved, list(gradients, output_names), scale, 1e-6, size, save_scores ? 2 : 1, "portable");
          Tensors got;
          for (size_t i = 0; i < output_names.size(); ++i) got[output_names[i]] = out[i];
          for (size_t i = 0; i < in_gradients.size(); ++i) got["d_" + cyclic_flow_arguments()[i]] = in_gradients[i];
          expect_close(got, want);
        }
      }
    }
  }
}

TEST_P(CyclicFlow, TheFinalStateMayBeLeftOut) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {20, 0, 50}}) {
    const OpCase c = make({.B = 2, .T = 70, .lengths = lengths});
    Tensors gradients = make_output_gradients(c);
    std::erase_if(gradients, [](const auto& x) { return x.first != "o"; });
    for (const Backend backend : {Backend::kPortable, Backend::kReference}) {
      SCOPED_TRACE(describe(c));
      const Tensors without = run(c.op, make_inputs(c), gradients, {.backend = backend, .final_state = false});
      Tensors with = run(c.op, make_inputs(c), gradients, {.backend = backend});
      for (const char* name : {"final_k", "final_v", "final_clock"}) with.erase(name);
      EXPECT_EQ(without.size(), with.size());
      expect_same_bits(without, with);
    }
    EXPECT_FALSE(ops::cyclic_flow(cyclic_flow_inputs(make_inputs(c)), RunOptions{.final_state = false}).final_state.k.defined());
  }
}

// Decode steps

TEST(CyclicFlowStep, ChainOfStepsIsTheForward) {
  for (const int64_t M : {2, 4, 6, 16, 64, 128, 256}) {
    for (const bool bare : {false, true}) {
      const OpCase c{.B = 3, .T = 50, .H = 3, .K = 24, .V = 40, .M = M, .norm_weights = !bare, .initial_state = !bare};
      SCOPED_TRACE(describe(c));
      const Tensors steps = run_steps(c.op, make_inputs(c));
      expect_close(steps, without_gradients(judge(c)));
      expect_close(steps, without_gradients(run(c, {.chunk = 16})));
    }
  }
}

TEST(CyclicFlowStep, TakesUpWhereTheForwardEnds) {
  const OpCase c{.B = 2, .T = 90};
  const Tensors inputs = make_inputs(c);
  Tensors rest = tokens(inputs, 70, 90);
  carry(run(c.op, tokens(inputs, 0, 70), {}), rest);
  const Tensors want = without_gradients(judge(c));
  expect_close(run_steps(c.op, rest), tokens(want, 70, 90));
}

TEST(CyclicFlowStep, ExtremeGatesAndClocks) {
  for (const Gates gates : {Gates::kOpen, Gates::kDead, Gates::kShut, Gates::kMixed}) {
    const OpCase c{.T = 40, .gates = gates, .clock = 1e6};
    SCOPED_TRACE(describe(c));
    expect_close(run_steps(c.op, make_inputs(c)), without_gradients(judge(c)));
  }
}

TEST(CyclicFlowStep, PaddingLeavesTheStateBitForBit) {
  const OpCase c{.T = 3};
  const Tensors inputs = make_inputs(c);
  for (const char* name : {"log_alpha", "delta", "beta"}) inputs.at(name).zero_();
  const Tensors out = run_steps(c.op, inputs);
  EXPECT_TRUE(same_bits(out.at("final_k"), inputs.at("initial_k")));
  EXPECT_TRUE(same_bits(out.at("final_v"), inputs.at("initial_v")));
  EXPECT_TRUE(same_bits(out.at("final_clock"), inputs.at("initial_clock")));
}

TEST(CyclicFlowStep, BatchOfOneIsBatchOfManyBitForBit) {
  const OpCase c{.B = 7, .T = 4, .H = 3};
  const Tensors inputs = make_inputs(c);
  const Tensors many = run_steps(c.op, inputs);
  for (int64_t b = 0; b < c.B; ++b) expect_same_bits(sequence(many, b), run_steps(c.op, sequence(inputs, b)));
}

TEST(CyclicFlowStep, WidensBf16) {
  const OpCase c{.T = 20, .dtype = at::kBFloat16};
  const Tensors out = run_steps(c.op, make_inputs(c));
  EXPECT_EQ(out.at("o").scalar_type(), at::kBFloat16);
  EXPECT_EQ(out.at("final_k").scalar_type(), at::kFloat);
  expect_close(out, without_gradients(judge(c)));
}

TEST(CyclicFlowStep, NeedsNoAutograd) {
  const OpCase c{.T = 2};
  Tensors inputs = make_inputs(c);
  for (auto& [name, x] : inputs) {
    if (!is_state(name)) x.requires_grad_();
  }
  const Tensors out = run_steps(c.op, inputs);
  EXPECT_FALSE(out.at("o").requires_grad());
  EXPECT_FALSE(out.at("final_k").requires_grad());
}

TEST(CyclicFlowStep, AnEmptyBatchStepsToNothing) {
  const OpCase c{.B = 0, .T = 2};
  EXPECT_EQ(run_steps(c.op, make_inputs(c)).at("o").sizes(), at::IntArrayRef({0, 2, c.H, c.V}));
}

TEST(CyclicFlowStep, InputsAreNeverChanged) {
  const OpCase c{.T = 5};
  const Tensors inputs = make_inputs(c);
  const Tensors before = clone(inputs);
  run_steps(c.op, inputs);
  expect_same_bits(inputs, before);
}

// Backends

TEST(CyclicFlowBackend, AutoIsPortableOnACpu) {
  const ops::CyclicFlowInputs in = cyclic_flow_inputs(make_inputs({}));
  EXPECT_EQ(ops::cyclic_flow(in).backend, Backend::kPortable);
  EXPECT_EQ(ops::cyclic_flow(in, RunOptions{.backend = Backend::kPortable}).backend, Backend::kPortable);
  EXPECT_EQ(ops::cyclic_flow(in, RunOptions{.backend = Backend::kReference}).backend, Backend::kReference);
}

TEST(CyclicFlowBackend, AForcedBackendRefusesWithAReason) {
  const ops::CyclicFlowInputs in = cyclic_flow_inputs(make_inputs({}));
  try {
    ops::cyclic_flow(in, RunOptions{.backend = Backend::kSm90});
    FAIL() << "sm90 took tensors of a CPU";
  } catch (const ops::ArgumentError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("cyclic_flow: ")) << message;
    EXPECT_NE(message.find("sm90"), std::string::npos) << message;
    EXPECT_NE(message.find("refuses: "), std::string::npos) << message;
    EXPECT_GT(message.size(), message.find("refuses: ") + 15) << "no reason: " << message;
  }
}

TEST(CyclicFlowBackend, EveryBackendAnswers) {
  const std::vector<ops::BackendOffer> offers = ops::cyclic_flow_backends(cyclic_flow_inputs(make_inputs({})));
  std::map<Backend, bool> takes;
  for (const ops::BackendOffer& offer : offers) takes[offer.backend] = offer.refusal.empty();
  EXPECT_EQ(takes, (std::map<Backend, bool>{{Backend::kReference, true}, {Backend::kPortable, true}, {Backend::kSm90, false}}));
}

TEST(CyclicFlowBackend, NamesAreParsedBack) {
  for (const Backend b : {Backend::kAuto, Backend::kReference, Backend::kPortable, Backend::kSm90}) {
    EXPECT_EQ(ops::parse_backend(ops::backend_name(b)), b);
  }
  for (const char* name : {"", "cuda", "Portable", "sm90 "}) EXPECT_THROW(ops::parse_backend(name), ops::ArgumentError) << name;
  try {
    ops::parse_backend("triton");
    FAIL();
  } catch (const ops::ArgumentError& error) {
    const std::string message = error.what();
    for (const char* word : {"backend", "triton", "auto", "reference", "portable", "sm90"}) {
      EXPECT_NE(message.find(word), std::string::npos) << message;
    }
  }
}

TEST(CyclicFlowBackend, TheFirstThatDoesNotRefuseIsChosen) {
  const std::vector<ops::BackendOffer> offers = {{Backend::kSm90, "too old"}, {Backend::kPortable, ""}, {Backend::kReference, ""}};
  EXPECT_EQ(ops::choose_backend("op", Backend::kAuto, offers), Backend::kPortable);
  EXPECT_EQ(ops::choose_backend("op", Backend::kReference, offers), Backend::kReference);
  EXPECT_THROW(ops::choose_backend("op", Backend::kSm90, offers), ops::ArgumentError);
  EXPECT_THROW(ops::choose_backend("op", Backend::kAuto, {{Backend::kSm90, "too old"}}), ops::ArgumentError);
  EXPECT_THROW(ops::choose_backend("op", Backend::kReference, {{Backend::kPortable, ""}}), ops::ArgumentError);
}

// The readout table of decode steps is R Phi. With R = I it is Phi, whose columns are orthonormal except for the padding column.
TEST(CyclicFlowReadoutTable, IsTheFourierBasisForTheIdentity) {
  for (const int64_t M : {2, 6, 64, 256}) {
    const at::Tensor table = ops::cyclic_flow_readout_table(at::eye(M - 1, at::kDouble).unsqueeze(0));
    ASSERT_EQ(table.sizes(), at::IntArrayRef({1, M, M}));
    at::Tensor want = at::eye(M, at::kDouble);
    want.select(0, 1).zero_();
    EXPECT_LT((at::matmul(table[0].t(), table[0]) - want).abs().max().item<double>(), 1e-13) << M;
    EXPECT_EQ(table.select(1, M - 1).abs().max().item<double>(), 0.0);
    EXPECT_EQ(table.select(2, 1).abs().max().item<double>(), 0.0);
  }
  EXPECT_EQ(ops::cyclic_flow_readout_table(at::eye(7, at::kBFloat16).unsqueeze(0)).scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace cyfa::test
