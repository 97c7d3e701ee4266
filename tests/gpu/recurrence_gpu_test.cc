// The sm90 backend of the recurrences against the fp64 reference: every op, output and gradient.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class GpuRecurrences : public testing::TestWithParam<Op> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device, or a torch without CUDA";
  }

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

INSTANTIATE_TEST_SUITE_P(All, GpuRecurrences, testing::ValuesIn(recurrences()),
                         [](const testing::TestParamInfo<Op>& op) { return op_label(op.param); });

}  // namespace
}  // namespace cyfa::test
