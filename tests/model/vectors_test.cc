// Tests stored models against their stored outputs: the project's own vectors and, if the folder is present, checkpoints of the original
// implementations.
#include <gtest/gtest.h>

#include "cyfa/model/checkpoint.h"
#include "cyfa/model/tensor_file.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders() {
  std::vector<fs::path> found;
  const fs::path source = CYFA_SOURCE_DIR;
  for (const fs::path& parent : {source / "tests" / "vectors", source.parent_path() / "shared" / "golden" / "baselines"}) {
    if (!fs::is_directory(parent)) continue;
    for (const auto& entry : fs::directory_iterator(parent)) {
      if (fs::exists(entry.path() / "expected.safetensors")) found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

class StoredModel : public testing::TestWithParam<fs::path> {
 protected:
  // The stored values of these two come from kernels with errors of about 1e-3.
  static double limit() { return GetParam().filename() == "kda" || GetParam().filename() == "delta_net" ? 2e-3 : 1e-4; }
};

double rel(const at::Tensor& a, const at::Tensor& b) { return (a - b).norm().item<double>() / std::max(1e-30, b.norm().item<double>()); }

TEST_P(StoredModel, LogitsLossAndEveryGradient) {
  const TensorFile expected(GetParam() / "expected.safetensors");
  CausalLM m = load_checkpoint(GetParam(), {at::kFloat, at::kCPU, true});
  const at::Tensor ids = expected.copy("input_ids");
  {
    const at::NoGradGuard no_grad;
    const Weights w = m.weights();
    EXPECT_LT(rel(m.head(w, m.forward(w, ids).hidden), expected.copy("logits")), limit());
    ModelState state = m.initial_state(ids.size(0));
    std::vector<at::Tensor> logits;
    for (int64_t t = 0; t < ids.size(1); ++t) logits.push_back(m.step(w, ids.select(1, t), state));
    EXPECT_LT(rel(at::stack(logits, 1), expected.copy("logits")), limit());
  }
  for (at::Tensor& p : m.parameters()) p.requires_grad_();
  const at::Tensor loss = m.next_token_loss(m.weights(), ids);
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), expected.copy("loss").item<double>(), limit());
  for (size_t id = 0; id < m.parameters().size(); ++id) {
    const std::string name = "grad." + m.table().specs()[id].name;
    ASSERT_TRUE(expected.contains(name)) << name;
    EXPECT_LT(rel(m.parameters()[id].grad(), expected.copy(name)), limit()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, StoredModel, testing::ValuesIn(folders()),
                         [](const auto& folder) { return folder.param.filename().string(); });

}  // namespace
}  // namespace cyfa::test
