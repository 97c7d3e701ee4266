// Tests stored models against their stored outputs: tests/vectors and, where it is present, shared/golden.
#include <gtest/gtest.h>

#include <set>

#include "cyfa/model/checkpoint.h"
#include "cyfa/model/tensor_file.h"
#include "tests/model/small_model.h"
#include "tests/shared_folder.h"

namespace cyfa::test {
namespace {

namespace fs = std::filesystem;

struct Stored {
  fs::path folder;
  bool shared;

  std::string name() const { return (shared ? "Shared_" : "") + folder.filename().string(); }
};

std::vector<Stored> stored_in(const fs::path& parent, bool shared) {
  std::vector<Stored> found;
  if (!fs::is_directory(parent)) return found;
  for (const auto& entry : fs::directory_iterator(parent)) {
    if (fs::exists(entry.path() / "expected.safetensors")) found.push_back({entry.path(), shared});
  }
  std::sort(found.begin(), found.end(), [](const Stored& a, const Stored& b) { return a.folder < b.folder; });
  return found;
}

std::vector<Stored> own_models() { return stored_in(fs::path(CYFA_SOURCE_DIR) / "tests" / "vectors", false); }
std::vector<Stored> shared_models() { return stored_in(shared_folder() / "golden" / "baselines", true); }

std::vector<Stored> all_models() {
  std::vector<Stored> all = own_models();
  const std::vector<Stored> shared = shared_models();
  all.insert(all.end(), shared.begin(), shared.end());
  return all;
}

TEST(StoredModels, EveryKindHasOne) {
  std::set<std::string> kinds;
  for (const Stored& stored : own_models()) kinds.insert(ModelConfig::read(stored.folder / "config.json").kind->model_type);
  for (const MixerKind& kind : mixer_kinds()) {  // BLA has no origin: blurry_window_test.cc
    EXPECT_EQ(kinds.contains(kind.model_type), kind.model_type != "blurry_window_attention") << kind.model_type;
  }
}

TEST(StoredModels, OfTheSharedFolder) {
  if (shared_models().empty()) GTEST_SKIP() << "12 larger checkpoints of the origins: no shared/golden/baselines; set CYFA_SHARED";
  EXPECT_EQ(shared_models().size(), 12U);
}

class StoredModel : public testing::TestWithParam<Stored> {
 protected:
  const fs::path& folder() const { return GetParam().folder; }
  // Some of the shared values come from kernels with errors of about 1e-3.
  double limit() const { return GetParam().shared && (folder().filename() == "kda" || folder().filename() == "delta_net") ? 2e-3 : 1e-4; }
};

double rel(const at::Tensor& a, const at::Tensor& b) { return (a - b).norm().item<double>() / std::max(1e-30, b.norm().item<double>()); }

TEST_P(StoredModel, LogitsLossAndEveryGradient) {
  const TensorFile expected(folder() / "expected.safetensors");
  CausalLM m = load_checkpoint(folder(), {at::kFloat, at::kCPU, true});
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

INSTANTIATE_TEST_SUITE_P(Folders, StoredModel, testing::ValuesIn(all_models()), [](const auto& stored) { return stored.param.name(); });

}  // namespace
}  // namespace cyfa::test
