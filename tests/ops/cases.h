// The op cases (cyfa/ops/cases/op_case.h) for gtest: runs on the device under test and comparisons of results.
#pragma once

#include "cyfa/ops/cases/op_case.h"

namespace cyfa::cases {

void PrintTo(Op op, std::ostream* out);  // for gtest

}  // namespace cyfa::cases

namespace cyfa::test {

using namespace cases;

// The device under test: the environment variable CYFA_TEST_DEVICE, or the CPU. Inputs and results stay on the CPU and are copied for each
// call. The reference always runs on the CPU.
at::Device test_device();

// call_op and run_op on that device.
Tensors call(Op op, const Tensors& inputs, const RunOptions& options = {});
Tensors run(Op op, const Tensors& inputs, const Tensors& gradients, const RunOptions& options = {},
            const std::optional<std::set<std::string>>& wanted = std::nullopt);
Tensors run(const OpCase& c, const RunOptions& options = {});

// Expects every tensor of `want` to match within its limit (limit_of), or within `limit` if given. Records the largest errors, which are
// printed when the program ends.
void expect_close(const Tensors& got, const Tensors& want, std::optional<double> limit = std::nullopt);

void expect_same_bits(const Tensors& got, const Tensors& want);
// The same for results of calls with different shapes. On a GPU with ATen ops they are only close, because cuBLAS chooses the order of
// summation by the shape (docs/support.md).
void expect_same_bits_of_shapes(const Tensors& got, const Tensors& want);

}  // namespace cyfa::test
