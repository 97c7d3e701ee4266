// Tests that a chain of decode steps matches the forward for every recurrence op.
#include <gtest/gtest.h>

#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

class Steps : public testing::TestWithParam<Op> {};

INSTANTIATE_TEST_SUITE_P(Ops, Steps, testing::ValuesIn(recurrences()), [](const auto& test) { return op_label(test.param); });

TEST_P(Steps, AreTheWhole) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Gates gates : {Gates::kRealistic, Gates::kMixed, Gates::kShut}) {
      for (const OpCase& shape :
           {OpCase{.T = 70}, OpCase{.B = 3, .T = 9, .H = 3, .K = 5, .V = 21}, OpCase{.B = 1, .T = 20, .H = 1, .K = 1, .V = 1}}) {
        for (const bool state : {false, true}) {
          OpCase c = shape;
          c.op = GetParam();
          c.dtype = dtype;
          c.gates = gates;
          c.initial_state = state;
          SCOPED_TRACE(describe(c));
          expect_close(run_steps(c.op, make_inputs(c)), without_gradients(judge(c)));
        }
      }
    }
  }
}

TEST_P(Steps, DoNotDependOnTheRestOfTheBatch) {
  OpCase c{.B = 5, .T = 7, .H = 3, .K = 9, .V = 19};
  c.op = GetParam();
  const Tensors inputs = make_inputs(c);
  const Tensors many = run_steps(c.op, inputs);
  for (int64_t b = 0; b < c.B; ++b) expect_same_bits(run_steps(c.op, sequence(inputs, b)), sequence(many, b));
}

}  // namespace
}  // namespace cyfa::test
