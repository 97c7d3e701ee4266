// Tests that every kind of model starts as its origin does: the defaults of config keys and the initialisation of parameters, as recorded
// in tests/vectors/origins.json by make_baselines.py.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

const Json& origins() {
  static const Json facts = Json::parse(std::ifstream(std::string(CYFA_SOURCE_DIR) + "/tests/vectors/origins.json"));
  return facts;
}

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const auto& [kind, fact] : origins().items()) names.push_back(kind);
  return names;
}

class Origin : public testing::TestWithParam<std::string> {
 protected:
  const Json& fact() const { return origins()[GetParam()]; }
  Json with_type(const Json& keys) const {
    Json config = {{"model_type", GetParam()}};
    config.update(keys);
    return config;
  }
};

// A config without keys means what the origin's means: nothing changes when every key is given with the origin's default.
TEST_P(Origin, DefaultsAreTheSame) {
  const ModelConfig absent = ModelConfig::parse(with_type(Json::object())), given = ModelConfig::parse(with_type(fact()["defaults"]));
  for (const auto& [key, value] : absent.resolved.items()) EXPECT_EQ(value, given.resolved[key]) << key;
  EXPECT_EQ(absent.intermediate_size, given.intermediate_size);
  EXPECT_EQ(absent.bos, given.bos);
  EXPECT_EQ(absent.eos, given.eos);
  EXPECT_EQ(absent.pad, given.pad);
  const CausalLM a(absent), b(given);
  ASSERT_EQ(a.table().specs().size(), b.table().specs().size());
  for (size_t i = 0; i < a.table().specs().size(); ++i) {
    const ParameterSpec &p = a.table().specs()[i], &q = b.table().specs()[i];
    EXPECT_EQ(p.name, q.name);
    EXPECT_EQ(p.shape, q.shape) << p.name;
    EXPECT_EQ(p.init.text(), q.init.text()) << p.name;
  }
}

// Of `values` numbers drawn from the origin's distribution, the share below its quantile p is p within five standard errors.
void check_quantiles(const Json& quantiles, const at::Tensor& drawn, const std::string& name) {
  const double shares[] = {0.05, 0.25, 0.5, 0.75, 0.95};
  const auto n = static_cast<double>(drawn.numel());
  for (size_t i = 0; i < 5; ++i) {
    const double p = shares[i], below = drawn.lt(quantiles[i].get<double>()).sum().item<double>() / n;
    EXPECT_NEAR(below, p, 5 * std::sqrt(2 * p * (1 - p) / n) + 1 / n) << name << ": share below the quantile " << p;
  }
}

TEST_P(Origin, InitialParametersHaveTheSameDistributions) {
  constexpr uint64_t kSeeds = 100;  // as in make_baselines.py
  const Json config = with_type(fact()["initial_config"]);
  CausalLM model(ModelConfig::parse(config));
  std::map<std::string, std::vector<at::Tensor>> drawn;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    model.initialise(seed);
    for (size_t id = 0; id < model.parameters().size(); ++id) {
      const std::string& name = model.table().specs()[id].name;
      if (name.find(".layers.1.") == std::string::npos) drawn[name].push_back(model.parameters()[id].to(at::kDouble));
    }
  }
  const auto pad = config["pad_token_id"].get<int64_t>();
  size_t checked = 0;
  for (const auto& [name, of_origin] : fact()["initial"].items()) {
    if (name.ends_with("[padding]")) {
      const std::string table = name.substr(0, name.size() - std::string("[padding]").size());
      for (const at::Tensor& x : drawn.at(table)) EXPECT_EQ(x[pad].abs().max().item<double>() == 0, of_origin["zeros"].get<bool>());
      for (at::Tensor& x : drawn.at(table)) x = at::cat({x.narrow(0, 0, pad), x.narrow(0, pad + 1, x.size(0) - pad - 1)});
      continue;
    }
    ASSERT_TRUE(drawn.contains(name)) << name;
    ++checked;
    const at::Tensor x = at::stack(drawn.at(name)).flatten();
    if (of_origin.contains("identity")) {
      for (const at::Tensor& y : drawn.at(name)) EXPECT_TRUE(at::equal(y, at::eye(y.size(-1), at::kDouble).expand_as(y))) << name;
    } else if (of_origin.contains("constant")) {
      EXPECT_EQ(x.min().item<double>(), of_origin["constant"].get<double>()) << name;
      EXPECT_EQ(x.max().item<double>(), of_origin["constant"].get<double>()) << name;
    } else {
      EXPECT_EQ(x.numel(), of_origin["values"].get<int64_t>()) << name;
      check_quantiles(of_origin["quantiles"], x, name);
    }
  }
  EXPECT_EQ(checked, drawn.size());
}

INSTANTIATE_TEST_SUITE_P(Kinds, Origin, testing::ValuesIn(kinds()), [](const auto& kind) { return kind.param; });

TEST(Origins, EveryKindWithAnOriginIsRecorded) {
  for (const MixerKind& kind : mixer_kinds()) {
    EXPECT_EQ(origins().contains(kind.model_type), kind.model_type != "blurry_window_attention") << kind.model_type;
  }
}

TEST(Origins, NullIsNotAbsent) {
  const auto slots = [](const Json& keys) {
    Json config = {{"model_type", "gsa"}, {"hidden_size", 96}, {"num_heads", 3}};
    config.update(keys);
    return CausalLM(ModelConfig::parse(config)).memory_scalars() / 3 / 64;  // of H M (K + V)
  };
  EXPECT_EQ(slots(Json::object()), 64);
  EXPECT_EQ(slots({{"num_slots", nullptr}}), 32);  // the width of a key
  const auto width = [](const Json& keys) {
    Json config = {{"model_type", "retnet"}, {"hidden_size", 1024}};
    config.update(keys);
    return ModelConfig::parse(config).intermediate_size;
  };
  EXPECT_EQ(width(Json::object()), 1536);
  EXPECT_EQ(width({{"hidden_ratio", nullptr}}), 2816);  // a ratio of 4
  const auto cached = [](const Json& keys) {
    Json config = {{"model_type", "mistral"}};
    config.update(keys);
    return CausalLM(ModelConfig::parse(config)).layers()[0].block->mixer().state()[0];
  };
  EXPECT_EQ(cached(Json::object()).shape, (std::vector<int64_t>{4096, 8, 128}));
  EXPECT_TRUE(cached({{"sliding_window", nullptr}}).grows);
  EXPECT_EQ(ModelConfig::parse({{"model_type", "gla"}, {"eos_token_id", nullptr}, {"bos_token_id", nullptr}}).eos, std::vector<int64_t>());
  EXPECT_FALSE(ModelConfig::parse({{"model_type", "gla"}, {"bos_token_id", nullptr}}).bos.has_value());
  EXPECT_FALSE(ModelConfig::parse({{"model_type", "gla"}, {"vocab_size", 1}}).bos.has_value());
}

// Mamba's matrices that add to the residual stream are scaled by the number of additions: one per layer, two with an MLP.
TEST(Origins, MambaScalesItsResidualsWithAnMlp) {
  const auto inits = [](const char* type, const Json& keys) {
    Json config = {{"model_type", type}, {"hidden_size", 32}, {"num_hidden_layers", 3}, {"head_dim", 16}, {"state_size", 8}};
    config.update(keys);
    const CausalLM model{ModelConfig::parse(config)};
    std::map<std::string, Init> found;
    for (const ParameterSpec& p : model.table().specs()) {
      if (p.name.ends_with("layers.2.mixer.out_proj.weight")) found["out"] = p.init;
      if (p.name.ends_with("layers.2.mlp.down_proj.weight")) found["down"] = p.init;
    }
    return found;
  };
  for (const char* type : {"mamba2", "mamba3"}) {
    EXPECT_DOUBLE_EQ(inits(type, Json::object()).at("out").value, 1 / std::sqrt(64.0 * 3));
    const auto both = inits(type, {{"mlp_intermediate_size", 40}});
    EXPECT_DOUBLE_EQ(both.at("out").value, 1 / std::sqrt(64.0 * 2 * 3));
    EXPECT_EQ(both.at("down").kind, Init::Kind::kUniform);
    EXPECT_DOUBLE_EQ(both.at("down").value, 1 / std::sqrt(40.0 * 2 * 3));
    const auto neither = inits(type, {{"mlp_intermediate_size", 40}, {"rescale_prenorm_residual", false}});
    EXPECT_EQ(neither.at("out").text(), "normal(0.02)");
    EXPECT_EQ(neither.at("down").text(), "normal(0.02)");
  }
}

// The streams that silu_streams names are the ones that change.
TEST(CyclicFlow, SiluAppliesToTheNamedStreams) {
  std::vector<at::Tensor> seen;
  for (const Json& streams : {Json::array(), Json({"q"}), Json({"k"}), Json({"v"}), Json({"q", "k"}), Json({"q", "k", "v"})}) {
    Json config = small_config();
    config["silu_streams"] = streams;
    const CausalLM m = small_model(config);
    const at::NoGradGuard no_grad;
    const at::Tensor hidden = m.forward(m.weights(), random_ids(m, {1, 12})).hidden;
    for (const at::Tensor& other : seen) EXPECT_FALSE(at::allclose(hidden, other)) << streams;
    seen.push_back(hidden);
  }
}

}  // namespace
}  // namespace cyfa::test
