// The sm90 backend of the recurrences against the fp64 reference: every op, output and gradient.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cyfa/ops/recurrence/table.h"
#include "tests/gpu/on_gpu.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class GpuRecurrences : public OnGpu<testing::TestWithParam<Op>> {
 protected:
  static Tensors run_on_gpu(const OpCase& c) {
    const Tensors results = run_op(c.op, moved_to(make_inputs(c), at::kCUDA), moved_to(make_output_gradients(c), at::kCUDA),
                                   RunOptions{.backend = ops::Backend::kSm90});
    return moved_to(results, at::kCPU);
  }

  static void check(const OpCase& c) {
    SCOPED_TRACE(describe(c));
    const Tensors got = run_on_gpu(c);
    for (const auto& [name, want] : judge(c)) {
      ASSERT_TRUE(got.contains(name)) << name;
      const TensorError error = compare(name, got.at(name), want, error_limit(at::kBFloat16, name));
      EXPECT_TRUE(error.pass) << name << ": " << error.rel_l2 << ", limit " << error.limit;
    }
    for (const auto& [name, again] : run_on_gpu(c)) EXPECT_TRUE(same_bits(got.at(name), again)) << name << " differs in a second run";
  }
};

TEST_P(GpuRecurrences, WidthsAreTheReference) {
  for (const auto& [K, V] : {std::pair<int64_t, int64_t>{64, 64}, {128, 64}, {64, 192}, {256, 128}, {128, 256}}) {
    check({.op = GetParam(), .B = 2, .T = 150, .H = 2, .K = K, .V = V, .dtype = at::kBFloat16});
  }
}

TEST_P(GpuRecurrences, LengthsAreTheReference) {
  for (const int64_t T : {1, 15, 63, 64, 65, 128, 200}) {
    check({.op = GetParam(), .B = 2, .T = T, .H = 1, .K = 64, .V = 64, .dtype = at::kBFloat16, .initial_state = T % 2 == 0});
  }
}

TEST_P(GpuRecurrences, PackedSequencesAreTheReference) {
  check({.op = GetParam(), .lengths = {0, 70, 1, 129, 0, 64}, .H = 2, .K = 64, .V = 128, .dtype = at::kBFloat16});
}

TEST_P(GpuRecurrences, ExtremeGatesAreTheReference) {
  for (const Gates gates : {Gates::kOpen, Gates::kDead, Gates::kShut, Gates::kMixed, Gates::kInitialised}) {
    check({.op = GetParam(), .B = 1, .T = 140, .H = 2, .K = 128, .V = 64, .dtype = at::kBFloat16, .gates = gates});
  }
}

// More tokens than a segment of the backend: states are carried from segment to segment.
TEST_P(GpuRecurrences, LongSequencesAreThePortablePath) {
  OpCase c{.op = GetParam(), .B = 1, .T = 40000, .H = 1, .K = 64, .V = 64, .dtype = at::kBFloat16, .drawn = at::kFloat};
  Tensors wide;
  for (const auto& [name, x] : make_inputs(c)) wide[name] = x.is_floating_point() ? x.to(at::kCUDA, at::kDouble) : x.to(at::kCUDA);
  const Tensors want = run_op(c.op, wide, moved_to(make_output_gradients(c), at::kCUDA), RunOptions{.backend = ops::Backend::kPortable});
  const Tensors got = run_on_gpu(c);
  for (const auto& [name, x] : want) {
    const TensorError error = compare(name, got.at(name), x, error_limit(at::kBFloat16, name));
    EXPECT_TRUE(error.pass) << name << ": " << error.rel_l2 << ", limit " << error.limit;
  }
}

TEST_P(GpuRecurrences, RefusesWhatItHasNoKernelsFor) {
  const auto refusal = [&](const OpCase& c) {
    for (const ops::BackendOffer& offer : op_backends(c.op, moved_to(make_inputs(c), at::kCUDA))) {
      if (offer.backend == ops::Backend::kSm90) return offer.refusal;
    }
    return std::string("not offered");
  };
  EXPECT_EQ(refusal({.op = GetParam(), .K = 64, .V = 64, .dtype = at::kBFloat16}), "");
  EXPECT_NE(refusal({.op = GetParam(), .K = 64, .V = 64, .dtype = at::kFloat}).find("bf16"), std::string::npos);
  EXPECT_NE(refusal({.op = GetParam(), .K = 96, .V = 64, .dtype = at::kBFloat16}).find("keys"), std::string::npos);
  EXPECT_NE(refusal({.op = GetParam(), .K = 64, .V = 96, .dtype = at::kBFloat16}).find("values"), std::string::npos);
}

// Heads that share keys, by the C++ interface that mixers use. The judge repeats the keys, in fp64 on the CPU.
struct SharedKeys {
  int64_t H, G, K, V, B, T;
  std::vector<int64_t> borders = {};
};

class GpuSharedKeys : public OnGpu<testing::TestWithParam<SharedKeys>> {};

TEST_P(GpuSharedKeys, AreTheRepeatedKeys) {
  const SharedKeys& c = GetParam();
  at::manual_seed(17);
  const int64_t N = c.borders.empty() ? c.B : static_cast<int64_t>(c.borders.size()) - 1;
  const auto draw = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16).to(at::kDouble); };
  const std::vector<at::Tensor> drawn = {draw({c.B, c.T, c.G, c.K}), draw({c.B, c.T, c.G, c.K}), draw({c.B, c.T, c.H, c.V}),
                                         at::log_sigmoid(at::randn({c.B, c.T, c.H}) * 3 + 2).to(at::kFloat).to(at::kDouble),
                                         at::randn({N, c.H, c.K, c.V}).to(at::kFloat).to(at::kDouble)};
  const at::Tensor grad_o = draw({c.B, c.T, c.H, c.V}), grad_state = at::randn({N, c.H, c.K, c.V}).to(at::kFloat).to(at::kDouble);
  struct Run {
    std::vector<at::Tensor> results;  // o, final state, and the gradients of `drawn`
    ops::Backend backend;
  };
  const auto run = [&](bool gpu) {
    std::vector<at::Tensor> x;
    for (size_t i = 0; i < drawn.size(); ++i) {
      const at::ScalarType narrow = i < 3 ? at::kBFloat16 : at::kFloat;
      x.push_back((gpu ? drawn[i].to(at::kCUDA, narrow) : drawn[i].clone()).detach().requires_grad_());
    }
    ops::RecurrenceInputs in{x[0], x[1], x[2], x[3], std::nullopt, x[4]};
    if (!c.borders.empty()) in.cu_seqlens = at::tensor(c.borders, at::kLong);
    ops::RecurrenceOptions options;
    options.shared_keys = true;
    const ops::RecurrenceOutput out = ops::run_recurrence(ops::recurrence_of("scalar_gated_la"), in, options);
    std::vector<at::Tensor> results = {out.o, out.final_state};
    const auto like = [](const at::Tensor& grad, const at::Tensor& of) { return grad.to(of.device(), of.scalar_type()); };
    const std::vector<at::Tensor> grads = torch::autograd::grad(results, x, {like(grad_o, out.o), like(grad_state, out.final_state)});
    results.insert(results.end(), grads.begin(), grads.end());
    for (at::Tensor& t : results) t = t.detach().to(at::kCPU);
    return Run{results, out.backend};
  };
  const Run want = run(false), got = run(true), again = run(true);
  EXPECT_EQ(got.backend, ops::Backend::kSm90);
  const char* const names[] = {"o", "final_state", "d_q", "d_k", "d_v", "d_log_alpha", "d_initial_state"};
  for (size_t i = 0; i < want.results.size(); ++i) {
    EXPECT_LT(relative_l2(got.results[i], want.results[i]), error_limit(at::kBFloat16, names[i])) << names[i];
    EXPECT_TRUE(same_bits(got.results[i], again.results[i])) << names[i] << " differs in a second run";
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, GpuSharedKeys,
                         testing::Values(SharedKeys{.H = 32, .G = 1, .K = 128, .V = 64, .B = 2, .T = 150},
                                         SharedKeys{.H = 6, .G = 2, .K = 64, .V = 128, .B = 3, .T = 64},
                                         SharedKeys{.H = 5, .G = 1, .K = 128, .V = 192, .B = 1, .T = 77},
                                         SharedKeys{.H = 4, .G = 4, .K = 64, .V = 64, .B = 2, .T = 70},
                                         SharedKeys{
                                             .H = 8, .G = 2, .K = 128, .V = 64, .B = 1, .T = 264, .borders = {0, 70, 71, 71, 200, 264}}));

INSTANTIATE_TEST_SUITE_P(All, GpuRecurrences, testing::ValuesIn(recurrences()),
                         [](const testing::TestParamInfo<Op>& op) { return op_label(op.param); });

}  // namespace
}  // namespace cyfa::test
