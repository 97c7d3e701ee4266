// Tests the health figures of a model against those of its layers.
#include <gtest/gtest.h>

#include <map>

#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

using Named = std::map<std::string, double>;

Named named(const Figures& figures) {
  Named by_name;
  for (const Figure& f : figures) by_name[f.name] = f.value;
  return by_name;
}

TEST(Health, LeastAndMostAreOverAllLayers) {
  const CausalLM m = small_model(small_config(4));
  const at::NoGradGuard no_grad;
  const Weights w = m.weights();
  const at::Tensor ids = random_ids(m, {2, 40});
  std::vector<Named> layers;
  at::Tensor x = m.embed(w, ids);
  for (const CausalLM::Layer& layer : m.layers()) {
    layers.push_back(named(layer.block->health(layer.weights(w), x)));
    MixerState after;
    x = layer.block->forward(layer.weights(w), x, std::nullopt, nullptr, &after);
  }
  const Named all = named(m.health(w, ids));
  ASSERT_GT(all.size(), 5U);
  for (const auto& [name, value] : all) {
    double least = layers[0].at(name), most = least, sum = 0;
    for (const Named& layer : layers) {
      least = std::min(least, layer.at(name));
      most = std::max(most, layer.at(name));
      sum += layer.at(name);
    }
    EXPECT_LT(least, most) << name;  // else the layers tell nothing
    if (name.ends_with("_least")) {
      EXPECT_EQ(value, least) << name;
    } else if (name.ends_with("_most")) {
      EXPECT_EQ(value, most) << name;
    } else {
      EXPECT_NEAR(value, sum / static_cast<double>(layers.size()), 1e-12) << name;
    }
  }
}

}  // namespace
}  // namespace cyfa::test
