// Tests the trainer's optimizer against steps of torch.optim.AdamW stored by tests/vectors/make_adamw.py.
#include <gtest/gtest.h>

#include "cyfa/train/optimizer.h"

namespace cyfa::test {
namespace {

TEST(Optimizer, TakesTheStepsOfTorchsAdamW) {
  const std::filesystem::path folder = std::filesystem::path(CYFA_SOURCE_DIR) / "tests/vectors/adamw";
  const TensorFile stored(folder / "steps.safetensors");
  const auto setting = [&](const char* key) { return std::stod(stored.file().metadata().at(key)); };
  Recipe recipe;
  recipe.beta1 = setting("beta1");
  recipe.beta2 = setting("beta2");
  recipe.eps = setting("eps");
  recipe.weight_decay = setting("weight_decay");
  CausalLM model(ModelConfig::read(folder / "model.json"));
  model.initialise(1);
  const auto name_of = [&](size_t id) { return model.table().specs()[id].name; };
  for (size_t id = 0; id < model.parameters().size(); ++id) model.parameters()[id] = stored.copy("0." + name_of(id));
  for (at::Tensor& p : model.parameters()) p.requires_grad_();
  Optimizer optimizer(model, recipe);
  const at::Tensor rates = stored.copy("rates"), norms = stored.copy("norms");
  int compared = 0;
  for (int64_t step = 1; step <= rates.numel(); ++step) {
    const std::string number = std::to_string(step);
    for (size_t id = 0; id < model.parameters().size(); ++id) {
      model.parameters()[id].mutable_grad() = stored.copy("grad." + number + "." + name_of(id));
    }
    const at::Tensor norm = optimizer.gradient_norm(optimizer.gradients());
    const auto wanted = norms[step - 1].item<double>();
    EXPECT_NEAR(norm.item<double>(), wanted, 1e-6 * wanted);
    optimizer.step(optimizer.gradients(), rates[step - 1].item<double>(), setting("clip"), norm, at::zeros({}, at::kDouble));
    if (!stored.contains(number + "." + name_of(0))) continue;
    for (size_t id = 0; id < model.parameters().size(); ++id) {
      const at::Tensor expected = stored.copy(number + "." + name_of(id));
      const double error = (model.parameters()[id].detach() - expected).abs().max().item<double>();
      EXPECT_LT(error, 1e-6) << "step " << step << ", " << name_of(id);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 3 * static_cast<int>(model.parameters().size()));
}

}  // namespace
}  // namespace cyfa::test
