// A model computes the same inside torch.autocast as outside: forward, loss and steps, for every mixer.
#include <gtest/gtest.h>

#include "tests/model/small_model.h"
#include "tests/ops/autocast.h"

namespace cyfa::test {
namespace {

TEST(ModelAutocast, ForwardLossAndStepsAreTheSame) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, config] : model_cases()) {
    SCOPED_TRACE(name);
    const CausalLM model = small_model(config);
    for (const std::optional<at::ScalarType> compute : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
      const Weights w = model.weights(compute);
      const at::Tensor ids = random_ids(model, {2, 9});
      const auto results = [&] {
        const LmOutput out = model.forward(w, ids);
        ModelState state = model.initial_state(2);
        return std::vector<at::Tensor>{model.head(w, out.hidden), model.next_token_loss(w, ids), model.step(w, ids.select(1, 0), state)};
      };
      const std::vector<at::Tensor> outside = results();
      const Autocast on(at::kCPU);
      const std::vector<at::Tensor> inside = results();
      for (size_t i = 0; i < outside.size(); ++i) EXPECT_TRUE(at::equal(inside[i], outside[i])) << i;
    }
  }
}

}  // namespace
}  // namespace cyfa::test
