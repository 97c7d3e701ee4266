#include "tests/ops/cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace cyfa::test {
namespace {

// Largest errors by type and tensor, printed when the program ends.
class ErrorTable : public testing::Environment {
 public:
  void record(const std::string& dtype, const std::string& name, double error) {
    double& largest = largest_[name][dtype];
    largest = std::max(largest, error);
  }

  void TearDown() override {
    if (largest_.empty()) return;
    std::printf("\nlargest relative L2 error against the reference\n%-16s %10s %10s %10s\n", "", "fp64", "fp32", "bf16");
    for (const auto& [name, by_type] : largest_) {
      std::printf("%-16s", name.c_str());
      for (const char* dtype : {"fp64", "fp32", "bf16"}) {
        const auto found = by_type.find(dtype);
        found == by_type.end() ? std::printf(" %10s", "") : std::printf(" %10.2e", found->second);
      }
      std::printf("\n");
    }
  }

 private:
  std::map<std::string, std::map<std::string, double>> largest_;
};

ErrorTable& error_table() {
  static auto* const table = new ErrorTable;
  return *table;
}

const testing::Environment* const kRegistered = testing::AddGlobalTestEnvironment(&error_table());

}  // namespace

Tensors call(Op op, const Tensors& inputs, const RunOptions& options) {
  const auto stays = [](const auto& input) { return input.second.defined() && !input.second.is_cpu(); };
  if (test_device() == at::kCPU || std::any_of(inputs.begin(), inputs.end(), stays) || options.backend == ops::Backend::kReference) {
    return call_op(op, inputs, options);
  }
  return moved_to(call_op(op, moved_to(inputs, test_device()), options), at::kCPU);
}

at::Device test_device() {
  static const at::Device device = [] {
    const char* name = std::getenv("CYFA_TEST_DEVICE");
    return at::Device(name == nullptr ? "cpu" : name);
  }();
  return device;
}

Tensors run(Op op, const Tensors& inputs, const Tensors& gradients, const RunOptions& options,
            const std::optional<std::set<std::string>>& wanted) {
  return differentiate([&](const Tensors& x) { return call(op, x, options); }, inputs, gradients, wanted);
}

Tensors run(const OpCase& c, const RunOptions& options) { return run(c.op, make_inputs(c), make_output_gradients(c), options); }

void expect_close(const Tensors& got, const Tensors& want, std::optional<double> limit) {
  const at::ScalarType dtype = got.at("o").scalar_type();
  for (const auto& [name, wanted] : want) {
    const at::Tensor result = got.contains(name) ? got.at(name) : at::Tensor();
    if (!result.defined()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    const double error = relative_l2(result, wanted);
    const double ceiling = limit.value_or(limit_of(dtype, name, result));
    if (!limit) error_table().record(ceiling == kLimitBf16 ? "bf16" : ceiling == kLimitFp64 ? "fp64" : "fp32", name, error);
    EXPECT_LE(error, ceiling) << name << " " << result.sizes();
  }
}

void expect_same_bits(const Tensors& got, const Tensors& want) {
  for (const auto& [name, wanted] : want) {
    const at::Tensor result = got.contains(name) ? got.at(name) : at::Tensor();
    EXPECT_TRUE(same_bits(result, wanted)) << name << ": relative L2 " << relative_l2(result, wanted);
  }
}

void expect_same_bits_of_shapes(const Tensors& got, const Tensors& want) {
  if (test_device().is_cpu()) {
    expect_same_bits(got, want);
  } else {
    expect_close(got, want);
  }
}

}  // namespace cyfa::test

void cyfa::cases::PrintTo(Op op, std::ostream* out) { *out << op_name(op); }
