// Configs: the paper's counts, and every way in which a config can be wrong.
#include <gtest/gtest.h>

#include <fstream>

#include "cyfa/io/file_error.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

CausalLM own(const std::string& name) { return CausalLM(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/" + name + ".json")); }

TEST(Configs, CountsOfThePaper) {
  const auto millions = [](const CausalLM& m) { return std::lround(static_cast<double>(m.table().numel()) * 1e-6); };
  EXPECT_EQ(millions(own("cyfa-400m")), 389);
  EXPECT_EQ(millions(own("cyfa-800m")), 800);
  EXPECT_EQ(millions(own("cyfa-1.4b")), 1394);
  EXPECT_EQ(own("cyfa-400m").memory_scalars(), 262144);
  EXPECT_EQ(own("cyfa-800m").memory_scalars(), 393216);
  EXPECT_EQ(own("cyfa-1.4b").memory_scalars(), 524288);
}

TEST(Configs, AblationsChangeTheParametersThatTheyShould) {
  const auto count = [](const Json& changes) {
    Json config = small_config(1);
    config.update(changes);
    return CausalLM(ModelConfig::parse(config)).table().numel();
  };
  const int64_t H = 3, D = 48, K = 16, M = 10, all = count(Json::object());
  EXPECT_EQ(all - count({{"use_forget_gate", false}}), H * D + 2 * H);
  EXPECT_EQ(all - count({{"clock", "constant"}}), H * D);
  EXPECT_EQ(all - count({{"readout", "identity"}}), H * (M - 1) * (M - 1));
  EXPECT_EQ(all - count({{"use_short_conv", false}}), 3 * H * K * 4);
  EXPECT_EQ(all - count({{"use_qk_norm", false}}), 2 * K);
  EXPECT_EQ(all, count({{"conv_activation", "silu"}}));
  EXPECT_EQ(all, count({{"clock_stop_gradient", false}}));
  EXPECT_EQ(count({{"num_slots", 64}}) - all, H * (63 * 63 - 9 * 9));
  EXPECT_EQ(count({{"num_slots", 256}}) - all, H * (255 * 255 - 9 * 9));
}

TEST(Configs, DefaultsAreThePublishedOnes) {
  const ModelConfig c = ModelConfig::parse({{"model_type", "cyclic_flow_attention"}});
  EXPECT_EQ(c.backbone.hidden_size, 2048);
  EXPECT_EQ(c.intermediate_size, 5632);
  EXPECT_EQ(ModelConfig::parse({{"model_type", "cyclic_flow_attention"}, {"hidden_size", 1024}}).intermediate_size, 2816);
  EXPECT_EQ(CausalLM(c).table().numel(), own("cyfa-1.4b").table().numel());
}

// What an error must say, and the config that it must say it of.
TEST(Configs, ErrorsNameTheKey) {
  const auto message = [](const Json& changes) -> std::string {
    Json config = small_config();
    config.update(changes);
    try {
      ModelConfig::parse(config);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  const std::vector<std::pair<Json, std::string>> cases = {{{{"hidden_sise", 48}}, "hidden_sise"},
                                                           {{{"hidden_size", "48"}}, "hidden_size is \"48\""},
                                                           {{{"hidden_size", 0}}, "hidden_size is 0"},
                                                           {{{"hidden_size", 1e18}}, "hidden_size"},
                                                           {{{"hidden_size", 47.5}}, "47.5"},
                                                           {{{"num_slots", 9}}, "num_slots is 9"},
                                                           {{{"num_slots", 0}}, "num_slots"},
                                                           {{{"hidden_act", "gelu"}}, "hidden_act is \"gelu\""},
                                                           {{{"model_type", "mamba9"}}, "mamba9"},
                                                           {{{"model_type", 3}}, "model_type"},
                                                           {{{"clock", "broken"}}, "clock"},
                                                           {{{"use_short_conv", "yes"}}, "use_short_conv"},
                                                           {{{"expand_k", 0.001}}, "expand_k"},
                                                           {{{"expand_k", -1}}, "expand_k"},
                                                           {{{"eos_token_id", 61}}, "eos_token_id"},
                                                           {{{"eos_token_id", Json::array({1, "x"})}}, "eos_token_id"},
                                                           {{{"bos_token_id", -1}}, "bos_token_id"},
                                                           {{{"use_short_conv", false}, {"conv_activation", "silu"}}, "conv_activation"},
                                                           {{{"norm_eps", nullptr}, {"vocab_size", 1e300}}, "vocab_size"}};
  for (const auto& [changes, words] : cases) EXPECT_NE(message(changes).find(words), std::string::npos) << changes << "\n" << message(changes);
  EXPECT_EQ(message({{"transformers_version", "9"}, {"use_cache", false}, {"eos_token_id", Json::array({1, 2})}}), "no error");
  EXPECT_THROW(ModelConfig::parse(Json::array()), ConfigError);
}

TEST(Configs, FilesThatAreNoConfigs) {
  const Folder folder;
  const auto write = [&](const std::string& text) {
    std::ofstream(folder / "config.json") << text;
    return folder / "config.json";
  };
  EXPECT_THROW(ModelConfig::read(folder / "absent.json"), io::FileError);
  for (const char* text : {"", "{", "[]", "{\"model_type\": }", "nonsense", "{\"model_type\":\"cyclic_flow_attention\",\"x\":\xff}"}) {
    EXPECT_THROW(ModelConfig::read(write(text)), io::FileError) << text;
  }
  EXPECT_THROW(ModelConfig::read(write(std::string(2 << 20, ' '))), io::FileError);
  EXPECT_THROW(ModelConfig::read(write(std::string(100000, '['))), io::FileError);
}

TEST(Parameters, InitialisationIsTheDocumentedOne) {
  CausalLM m(ModelConfig::parse(small_config(3)));
  m.initialise(7);
  for (size_t id = 0; id < m.parameters().size(); ++id) {
    const std::string& name = m.table().specs()[id].name;
    const at::Tensor& p = m.parameters()[id];
    if (name.ends_with("norm.weight")) {
      EXPECT_TRUE(p.eq(1).all().item<bool>()) << name;
    } else if (name.ends_with("bias") && !name.ends_with("dt_bias")) {
      EXPECT_TRUE(p.eq(0).all().item<bool>()) << name;
    } else if (name.ends_with("readout")) {
      EXPECT_TRUE(at::equal(p[1], at::eye(9))) << name;
    } else if (name.ends_with("A_log")) {
      EXPECT_LT(p.max().item<double>(), std::log(16.0) + 1e-6) << name;
    } else if (name.ends_with("dt_bias")) {
      const at::Tensor dt = at::softplus(p);
      EXPECT_GT(dt.min().item<double>(), 0.00099) << name;
      EXPECT_LT(dt.max().item<double>(), 0.1001) << name;
    } else {
      EXPECT_NEAR(p.std().item<double>(), 0.02, 0.008) << name;
    }
    const bool decays = m.table().specs()[id].weight_decay;
    const bool wanted = !name.ends_with("norm.weight") && !name.ends_with("bias") && !name.ends_with("A_log");
    EXPECT_EQ(decays, wanted) << name;
  }
  CausalLM again(ModelConfig::parse(small_config(3)));
  again.initialise(7);
  for (size_t id = 0; id < m.parameters().size(); ++id) EXPECT_TRUE(at::equal(m.parameters()[id], again.parameters()[id]));
}

}  // namespace
}  // namespace cyfa::test
