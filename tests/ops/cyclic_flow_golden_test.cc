// Tests cyclic_flow against stored vectors: the paper authors' (shared/golden, outside this repository; skipped if absent) and the
// project's own (tests/vectors).
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/ops/golden_file.h"
#include "tests/shared_folder.h"

namespace cyfa::test {
namespace {

namespace fs = std::filesystem;

struct VectorSet {
  const char* name;
  bool ours;  // true: computed in fp64 by this project; false: by the authors' fp32 token loop
  const char* file;
};

fs::path path_of(const VectorSet& set) {
  if (set.ours) return fs::path(CYFA_SOURCE_DIR) / "tests" / "vectors" / set.file;
  return shared_folder() / "golden" / set.file;
}

// The authors' loop runs in fp32: its largest difference from the fp64 reference is 8.7e-6.
constexpr double kAuthorsLimit = 5e-5;

class CyclicFlowGolden : public testing::TestWithParam<VectorSet> {
 protected:
  void SetUp() override {
    const fs::path path = path_of(GetParam());
    if (!GetParam().ours && !fs::exists(path)) GTEST_SKIP() << "no shared/golden/" << GetParam().file << "; set CYFA_SHARED to its folder";
    golden_ = read_golden(path);
  }

  // Runs the op on the stored inputs rounded to `dtype`.
  Tensors run_in(at::ScalarType dtype, ops::Backend backend) const {
    const auto rounded = [&](Tensors x) {
      for (auto& [name, t] : x) {
        if (t.is_floating_point() && !name.ends_with("clock")) t = t.to(dtype);
        if (name.ends_with("clock")) t = t.to(at::kDouble);
      }
      return x;
    };
    return run(Op::kCyclicFlow, rounded(golden_.inputs), rounded(golden_.gradients),
               {.backend = backend, .scale = golden_.scale, .norm_eps = golden_.norm_eps});
  }

  static std::optional<double> limit() { return GetParam().ours ? std::nullopt : std::optional(kAuthorsLimit); }

  GoldenFile golden_;
};

TEST_P(CyclicFlowGolden, HoldsEveryTensorOfARun) {
  std::set<std::string> expected = {"o", "final_k", "final_v", "final_clock"};
  for (const auto& [name, x] : golden_.inputs) {
    if (name != "cu_seqlens") expected.insert("d_" + name);
  }
  std::set<std::string> stored;
  for (const auto& [name, x] : golden_.results) stored.insert(name);
  EXPECT_EQ(stored, expected);
  EXPECT_EQ(golden_.gradients.size(), 4U);
}

TEST_P(CyclicFlowGolden, PortableInFp32) { expect_close(run_in(at::kFloat, ops::Backend::kPortable), golden_.results, limit()); }

TEST_P(CyclicFlowGolden, PortableInFp64) { expect_close(run_in(at::kDouble, ops::Backend::kPortable), golden_.results, limit()); }

TEST_P(CyclicFlowGolden, Reference) {
  expect_close(run_in(at::kDouble, ops::Backend::kReference), golden_.results, GetParam().ours ? 1e-13 : kAuthorsLimit);
}

INSTANTIATE_TEST_SUITE_P(
    Vectors, CyclicFlowGolden,
    testing::Values(VectorSet{"AuthorsSmall", false, "op_small.safetensors"}, VectorSet{"AuthorsState", false, "op_state.safetensors"},
                    VectorSet{"AuthorsVarlen", false, "op_varlen.safetensors"}, VectorSet{"OursPlain", true, "op_plain.safetensors"},
                    VectorSet{"OursState", true, "op_state.safetensors"}, VectorSet{"OursPacked", true, "op_packed.safetensors"}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace cyfa::test
