// Tests the ops on a GPU against the reference on the CPU: the portable path on CUDA tensors, the Hopper kernels and the decode step
// kernel. All tests are skipped without a GPU.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/gpu/on_gpu.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

Tensors moved(const Tensors& x, at::Device device) {
  Tensors there;
  for (const auto& [name, t] : x) there[name] = t.to(device);
  return there;
}

class Gpu : public OnGpu<> {
 protected:
  Tensors run_there(const OpCase& c, const RunOptions& options = {}) const {
    return moved(run(c.op, moved(make_inputs(c), at::kCUDA), moved(make_output_gradients(c), at::kCUDA), options), at::kCPU);
  }
};

TEST_F(Gpu, PortableIsTheReference) {
  for (const Op op : all_ops()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      std::vector<OpCase> cases = {{},
                                   {.B = 3, .T = 131, .H = 3, .K = 32, .V = 48, .M = 64},
                                   {.T = 0},
                                   {.T = 1},
                                   {.T = 63},
                                   {.T = 64},
                                   {.T = 65},
                                   {.lengths = {5, 0, 1, 64, 130, 600}},
                                   {.lengths = {0, 0}},
                                   {.T = 600, .initial_state = false},
                                   {.T = 90, .M = 2},
                                   {.T = 90, .K = 256, .V = 256, .M = 128},
                                   {.T = 90, .norm_weights = false}};
      for (OpCase& c : cases) {
        c.op = op;
        c.dtype = dtype;
        SCOPED_TRACE(describe(c));
        expect_close(run_there(c, {.backend = ops::Backend::kPortable}), judge(c));
      }
    }
  }
}

// `cases` with 128 slots, then cases for every other slot count that takes a different path through the kernels.
std::vector<OpCase> hopper_cases(std::vector<OpCase> cases) {
  for (OpCase& c : cases) c.M = 128;
  for (const int64_t M : {64, 100, 196, 256}) {
    cases.push_back({.T = 300, .M = M});
    cases.push_back({.T = 129, .M = M, .norm_weights = false, .initial_state = false});
    cases.push_back({.lengths = {5, 0, 1, 128, 300}, .M = M});
    cases.push_back({.lengths = {1, 0, 129}, .M = M, .gates = Gates::kMixed, .initial_state = false});
  }
  for (OpCase& c : cases) {
    c.K = c.V = 256;
    c.dtype = at::kBFloat16;
  }
  return cases;
}

// The Hopper kernels. All limits are those of rounding the operands of the matrix products to bf16: simulated, 0.0042 for o.
TEST_F(Gpu, HopperForwardIsTheReference) {
  const std::vector<OpCase> cases = {{.T = 128},
                                     {.T = 1},
                                     {.T = 129, .initial_state = false},
                                     {.B = 1, .T = 1000},
                                     {.T = 300, .norm_weights = false},
                                     {.lengths = {5, 0, 1, 128, 300}},
                                     {.T = 300, .gates = Gates::kMixed},
                                     {.T = 300, .gates = Gates::kDead},
                                     {.T = 300, .clock = 1e6}};
  for (const OpCase& c : hopper_cases(cases)) {
    SCOPED_TRACE(describe(c));
    const Tensors inputs = moved(make_inputs(c), at::kCUDA);
    {
      const at::NoGradGuard no_grad;
      ASSERT_EQ(ops::cyclic_flow_backends(cyclic_flow_inputs(inputs)).front().refusal, "");
      EXPECT_EQ(ops::cyclic_flow(cyclic_flow_inputs(inputs)).backend, ops::Backend::kSm90);
    }
    const Tensors got = moved(run(c.op, inputs, {}), at::kCPU);
    expect_close(got, judge(c.op, make_inputs(c), {}), 0.006);
    expect_same_bits(moved(run(c.op, inputs, {}), at::kCPU), got);
  }
}

// Limits of backward, whose matrix products have operands rounded to fp16 or bf16. Errors are larger for sums over few tokens (readout,
// norm weights), dead gates and gates that forget nothing than for hundreds of tokens with realistic gates;
// HopperBackwardIsPreciseOverManyTokens has stricter limits for the latter. The clock's gradients are sums of cancelling terms. If no gate
// is open, all terms cancel and there is nothing to compare (`clock` = false).
void expect_hopper_gradients(const Tensors& got, const Tensors& want, bool clock = true) {
  for (const auto& [name, t] : want) {
    const bool of_clock = name == "d_delta" || name == "d_initial_clock";
    if (!of_clock || clock) expect_close(got, {{name, t}}, of_clock ? 0.04 : 0.01);
  }
}

Tensors only_o(const Tensors& gradients) { return {{"o", gradients.at("o")}}; }

TEST_F(Gpu, HopperBackwardIsTheReference) {
  const std::vector<OpCase> cases = {{.T = 1},
                                     {.T = 127},
                                     {.T = 128},
                                     {.T = 129},
                                     {.B = 1, .T = 300},
                                     {.T = 300, .initial_state = false},
                                     {.T = 300, .norm_weights = false},
                                     {.lengths = {5, 0, 1, 128, 300}},
                                     {.lengths = {1, 0, 129}, .initial_state = false},
                                     {.T = 300, .gates = Gates::kMixed},
                                     {.T = 300, .gates = Gates::kDead},
                                     {.T = 300, .gates = Gates::kShut},
                                     {.T = 300, .gates = Gates::kOpen},
                                     {.T = 300, .clock = 1e6}};
  for (const OpCase& c : hopper_cases(cases)) {
    SCOPED_TRACE(describe(c));
    const Tensors inputs = moved(make_inputs(c), at::kCUDA);
    const Tensors gradients = moved(make_output_gradients(c), at::kCUDA);
    ASSERT_EQ(ops::cyclic_flow_backends(cyclic_flow_inputs(inputs)).front().refusal, "");
    const RunOptions sm90{.backend = ops::Backend::kSm90};
    const Tensors got = moved(run(c.op, inputs, gradients, sm90), at::kCPU);
    expect_hopper_gradients(got, judge(c));
    expect_same_bits(moved(run(c.op, inputs, gradients, sm90), at::kCPU), got);
    Tensors of_o = moved(run(c.op, inputs, only_o(gradients), sm90), at::kCPU);
    expect_hopper_gradients(of_o, judge(c.op, make_inputs(c), only_o(make_output_gradients(c))),
                            c.gates != Gates::kDead && c.gates != Gates::kShut);
    std::erase_if(of_o, [](const auto& x) { return x.first.starts_with("final"); });
    expect_same_bits(moved(run(c.op, inputs, only_o(gradients), {.backend = sm90.backend, .final_state = false}), at::kCPU), of_o);
  }
}

// With an empty initial state, realistic gates and a gradient of o only, errors are at most those of the Triton kernels of
// flash-linear-attention 0.6.0; for the clock's gradient, where those are 0.027 and 0.070, the limits are far stricter.
TEST_F(Gpu, HopperBackwardIsPreciseOverManyTokens) {
  for (const auto& [M, T] : {std::pair<int64_t, int64_t>{128, 512}, {128, 1024}, {64, 512}, {64, 1024}, {256, 512}, {256, 1024}}) {
    const OpCase c{.B = 1, .T = T, .K = 256, .V = 256, .M = M, .dtype = at::kBFloat16, .initial_state = false};
    SCOPED_TRACE(describe(c));
    const Tensors gradients = only_o(make_output_gradients(c));
    const RunOptions sm90{.backend = ops::Backend::kSm90};
    const Tensors got = moved(run(c.op, moved(make_inputs(c), at::kCUDA), moved(gradients, at::kCUDA), sm90), at::kCPU);
    const Tensors want = judge(c.op, make_inputs(c), gradients);
    const std::map<std::string, double> limits = {
        {"o", 0.0047},           {"d_q", 0.0051},    {"d_k", 0.0051},       {"d_v", 0.0047},
        {"d_log_alpha", 0.0039}, {"d_beta", 0.0043}, {"d_readout", 0.0043}, {"d_delta", T == 512 ? 0.010 : 0.020}};
    for (const auto& [name, limit] : limits) {
      std::cout << "M " << M << " T " << T << " " << name << " " << relative_l2(got.at(name), want.at(name)) << ", limit " << limit << "\n";
      expect_close(got, {{name, want.at(name)}}, limit);
    }
  }
}

// Backward accumulates contributions across a tile of 128 tokens only if the tile's decay exceeds 2^-16. Tests heads on both sides of this
// threshold in one call, with separate limits for each head.
TEST_F(Gpu, HopperBackwardOfHeadsThatForgetAndThatDoNot) {
  const OpCase c{.B = 1, .T = 512, .H = 4, .K = 256, .V = 256, .M = 128, .dtype = at::kBFloat16, .initial_state = false};
  Tensors inputs = make_inputs(c);
  at::Tensor& log_alpha = inputs.at("log_alpha");
  const at::Tensor kept = at::tensor({-1.0, -10.0, -15.9, -16.1}, at::kDouble);  // log2 of a tile's decay
  log_alpha = (kept * (std::log(2.0) / 128)).to(log_alpha.scalar_type()).expand_as(log_alpha).contiguous();
  const Tensors gradients = only_o(make_output_gradients(c));
  const RunOptions sm90{.backend = ops::Backend::kSm90};
  const Tensors got = moved(run(c.op, moved(inputs, at::kCUDA), moved(gradients, at::kCUDA), sm90), at::kCPU);
  const Tensors want = judge(c.op, inputs, gradients);
  for (int64_t h = 0; h < c.H; ++h) {
    for (const auto& [name, limit] : std::map<std::string, double>{{"d_log_alpha", 0.006}, {"d_delta", 0.02}}) {
      const double error = relative_l2(got.at(name).select(2, h), want.at(name).select(2, h));
      EXPECT_LE(error, limit) << name << " of head " << h;
    }
  }
}

// There are kernels for head widths 64, 128 and 256 (only 256 for more than 128 slots). Other widths are zero-padded.
TEST_F(Gpu, HopperTakesNarrowerHeads) {
  using Sizes = std::tuple<int64_t, int64_t, int64_t>;
  for (const auto& [K, V, M] : {Sizes{64, 64, 64},
                                {64, 64, 128},
                                {64, 128, 128},
                                {64, 256, 128},
                                {128, 64, 100},
                                {128, 128, 64},
                                {128, 256, 128},
                                {256, 64, 128},
                                {256, 128, 64},
                                {256, 128, 256},
                                {96, 160, 100}}) {
    for (const bool norms : {true, false}) {
      const OpCase c{.B = 2, .T = 200, .K = K, .V = V, .M = M, .dtype = at::kBFloat16, .norm_weights = norms};
      SCOPED_TRACE(describe(c));
      const Tensors inputs = moved(make_inputs(c), at::kCUDA);
      const RunOptions sm90{.backend = ops::Backend::kSm90};
      ASSERT_EQ(ops::cyclic_flow_backends(cyclic_flow_inputs(inputs)).front().refusal, "");
      expect_hopper_gradients(moved(run(c.op, inputs, moved(make_output_gradients(c), at::kCUDA), sm90), at::kCPU), judge(c));
    }
  }
}

TEST_F(Gpu, HopperCopiesNarrowRowsThatDoNotFit) {
  const at::NoGradGuard no_grad;
  const OpCase c{.B = 2, .T = 200, .K = 64, .V = 64, .M = 64, .dtype = at::kBFloat16};
  Tensors inputs = moved(make_inputs(c), at::kCUDA);
  const at::Tensor want = ops::cyclic_flow(cyclic_flow_inputs(inputs)).o;
  for (const char* name : {"q", "k", "v"}) inputs.at(name) = at::cat({inputs.at(name), inputs.at(name)}, 3).narrow(3, 0, 64);
  const ops::CyclicFlowOutput got = ops::cyclic_flow(cyclic_flow_inputs(inputs));
  EXPECT_EQ(got.backend, ops::Backend::kSm90);
  EXPECT_TRUE(same_bits(got.o.cpu(), want.cpu()));
}

// Gradients of tokens and states are bitwise independent of the other sequences in the batch.
void expect_same_bits_alone(const OpCase& c) {
  SCOPED_TRACE(describe(c));
  const Tensors inputs = moved(make_inputs(c), at::kCUDA);
  const Tensors gradients = moved(make_output_gradients(c), at::kCUDA);
  const RunOptions sm90{.backend = ops::Backend::kSm90};
  const Tensors all = sequence(run(c.op, inputs, gradients, sm90), 1);
  for (const auto& [name, t] : run(c.op, sequence(inputs, 1), sequence(gradients, 1), sm90)) {
    if (is_token_result(name) || is_state(name)) {
      EXPECT_TRUE(same_bits(t.cpu(), all.at(name).cpu())) << name;
    }
  }
}

TEST_F(Gpu, HopperBackwardOfOneSequenceIsThatOfABatch) {
  for (const int64_t M : {64, 128, 256}) {
    expect_same_bits_alone({.B = 3, .T = 200, .K = 256, .V = 256, .M = M, .dtype = at::kBFloat16});
  }
  for (const int64_t K : {64, 128}) {
    for (const int64_t V : {64, 128}) expect_same_bits_alone({.B = 3, .T = 200, .K = K, .V = V, .M = 128, .dtype = at::kBFloat16});
  }
}

TEST_F(Gpu, ExtremeGatesAndClocks) {
  for (const Gates gates : {Gates::kOpen, Gates::kDead, Gates::kShut, Gates::kMixed}) {
    const OpCase c{.T = 150, .M = 32, .gates = gates};
    SCOPED_TRACE(describe(c));
    expect_close(run_there(c), judge(c));
  }
  const OpCase late{.T = 150, .M = 128, .clock = 1e6};
  expect_close(run_there(late), judge(late));
}

TEST_F(Gpu, EqualRunsGiveEqualBits) {
  const OpCase c{.lengths = {70, 300, 1}, .H = 3, .M = 64};
  expect_same_bits(run_there(c), run_there(c));
}

// The batch size decides how states are split over thread blocks: quarters for small batches, then halves, then whole states, with keys and
// values in separate blocks or in one. The split must not change any bit.
TEST_F(Gpu, HopperSharesWalksWithoutChangingABit) {
  for (const int64_t B : {12, 24, 60}) {
    expect_same_bits_alone({.B = B, .T = 200, .K = 256, .V = 256, .M = 128, .dtype = at::kBFloat16});
    expect_same_bits_alone({.B = B, .T = 200, .K = 64, .V = 128, .M = 64, .dtype = at::kBFloat16});
  }
}

// Decode step with token `token` of every sequence of `in`; updates `state` in place.
at::Tensor step_of(const ops::CyclicFlowInputs& in, int64_t token, const at::Tensor& table, ops::CyclicFlowState& state,
                   ops::Backend backend) {
  const auto now = [token](const at::Tensor& x) { return x.select(1, token); };
  const ops::CyclicFlowStepInputs step{now(in.q),    now(in.k), now(in.v),        now(in.log_alpha), now(in.delta),
                                       now(in.beta), table,     in.q_norm_weight, in.k_norm_weight};
  if (token == 0 && backend == ops::Backend::kAuto && table.size(-1) % 4 == 0) {
    EXPECT_EQ(ops::cyclic_flow_step_backends(step, state).front().refusal, "");
  }
  return ops::cyclic_flow_step(step, state, RunOptions{.backend = backend});
}

ops::CyclicFlowState copied(const ops::CyclicFlowState& state) { return {state.k.clone(), state.v.clone(), state.clock.clone()}; }

// Decodes token by token with the step kernels, and with the portable path that handles what they refuse: all sizes with few heads, the
// published size also with more, and another size with so many that each head has only one thread block.
TEST_F(Gpu, ChainOfStepsIsTheReference) {
  struct Case {
    int64_t K, V, M, B = 3, T = 40;
  };
  for (const auto& [K, V, M, B, T] :
       {Case{64, 32, 2}, Case{64, 32, 4}, Case{64, 64, 64}, Case{128, 64, 128}, Case{256, 128, 64}, Case{64, 128, 256}, Case{128, 256, 256},
        Case{256, 256, 256}, Case{256, 256, 128}, Case{64, 64, 64, 90, 4}, Case{256, 256, 128, 20, 4}, Case{256, 256, 128, 45, 4}}) {
    for (const ops::Backend backend : {ops::Backend::kAuto, ops::Backend::kPortable}) {
      const OpCase c{.B = B, .T = T, .H = 3, .K = K, .V = V, .M = M, .clock = 1e6};
      SCOPED_TRACE(describe(c));
      const Tensors inputs = moved(make_inputs(c), at::kCUDA);
      const ops::CyclicFlowInputs in = cyclic_flow_inputs(inputs);
      ops::CyclicFlowState state = copied(*in.initial_state);
      const at::Tensor table = ops::cyclic_flow_readout_table(in.readout);
      std::vector<at::Tensor> rows;
      for (int64_t t = 0; t < c.T; ++t) rows.push_back(step_of(in, t, table, state, backend));
      const Tensors got = {{"o", at::stack(rows, 1)}, {"final_k", state.k}, {"final_v", state.v}, {"final_clock", state.clock}};
      expect_close(moved(got, at::kCPU), without_gradients(judge(c)));
    }
  }
}

// Batch sizes for which the kernel splits a head over 8, 4, 2 and 1 thread blocks (not 1 for the published size with fp32 states), with
// fp32 and bf16 states: a sequence's results are bitwise the same as without a batch.
TEST_F(Gpu, StepsOfASequenceDoNotDependOnTheBatch) {
  for (const auto& [K, M] : {std::pair<int64_t, int64_t>{256, 128}, {64, 64}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const OpCase c{.B = 90, .T = 3, .H = 3, .K = K, .V = K, .M = M};
      SCOPED_TRACE(describe(c));
      Tensors inputs = moved(make_inputs(c), at::kCUDA);
      for (const char* name : {"q", "k", "v"}) inputs.at(name) = inputs.at(name).to(at::kBFloat16);
      const ops::CyclicFlowInputs in = cyclic_flow_inputs(inputs);
      const at::Tensor table = ops::cyclic_flow_readout_table(in.readout);
      const auto run = [&](int64_t sequences) {
        const auto first = [&](const at::Tensor& x) { return x.narrow(0, 0, sequences).clone(); };
        ops::CyclicFlowInputs some = in;
        for (at::Tensor* x : {&some.q, &some.k, &some.v, &some.log_alpha, &some.delta, &some.beta}) *x = first(*x);
        const ops::CyclicFlowState& start = *in.initial_state;
        ops::CyclicFlowState state = {first(start.k).to(type), first(start.v).to(type), first(start.clock)};
        std::vector<at::Tensor> rows;
        for (int64_t t = 0; t < c.T; ++t) rows.push_back(step_of(some, t, table, state, ops::Backend::kAuto));
        return std::vector<at::Tensor>{at::stack(rows, 1), state.k, state.v, state.clock};
      };
      const std::vector<at::Tensor> alone = run(1);
      for (const int64_t B : {4, 10, 20, 45, 90}) {
        const std::vector<at::Tensor> among = run(B);
        for (size_t i = 0; i < alone.size(); ++i)
          EXPECT_TRUE(at::equal(among[i].narrow(0, 0, 1), alone[i])) << "batch " << B << ", result " << i;
      }
    }
  }
}

}  // namespace
}  // namespace cyfa::test
