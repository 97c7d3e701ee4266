// The op cases (cyfa/ops/cases/op_case.h) as the tests use them: run on the device under test, with results judged by gtest.
#pragma once

#include "cyfa/ops/cases/op_case.h"

namespace cyfa::cases {

void PrintTo(Op op, std::ostream* out);  // for gtest

}  // namespace cyfa::cases

namespace cyfa::test {

using namespace cases;

// Where calls from CPU tensors run, results being brought back: the environment's CYFA_TEST_DEVICE, or the CPU. The reference stays there.
at::Device test_device();

// call_op and run_op on that device.
Tensors call(Op op, const Tensors& inputs, const RunOptions& options = {});
Tensors run(Op op, const Tensors& inputs, const Tensors& gradients, const RunOptions& options = {},
            const std::optional<std::set<std::string>>& wanted = std::nullopt);
Tensors run(const OpCase& c, const RunOptions& options = {});

// Every tensor of `want` within its limit (limit_of), or within `limit` where one is given. Keeps the largest errors, which a program
// prints when all its tests have run.
void expect_close(const Tensors& got, const Tensors& want, std::optional<double> limit = std::nullopt);

void expect_same_bits(const Tensors& got, const Tensors& want);
// The same for results of calls of different shapes. Where a GPU computes in parts of ATen, cuBLAS adds in an order that it chooses by the
// shape: there they are close (docs/support.md).
void expect_same_bits_of_shapes(const Tensors& got, const Tensors& want);

}  // namespace cyfa::test
