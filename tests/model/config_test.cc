// Tests configs: the paper's parameter counts, and errors for every kind of invalid config.
#include <gtest/gtest.h>

#include <fstream>

#include "cyfa/io/file_error.h"
#include "cyfa/model/describe.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

CausalLM own(const std::string& name) { return CausalLM(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/" + name + ".json")); }

// The paper's table of models: millions of parameters, and elements of recurrent state per layer (0 for a growing KV cache).
TEST(Configs, CountsOfThePaper) {
  struct Row {
    const char* name;
    double millions;
    int64_t state;
  };
  const Row rows[] = {{"transformer-400m", 374, 0},  {"swa-400m", 374, 262144},      {"gsa-400m", 386, 262144},
                      {"raven-400m", 412, 262144},   {"bla-rho2-400m", 387, 262144}, {"bla-rho5-400m", 387, 262144},
                      {"mamba2-400m", 375, 262144},  {"mamba3-400m", 378, 262144},   {"gdn-400m", 400, 262144},
                      {"kda-400m", 400, 262144},     {"cyfa-400m", 389, 262144},     {"transformer-800m", 778, 0},
                      {"gdn-800m", 835, 393216},     {"kda-800m", 816, 393216},      {"cyfa-800m", 800, 393216},
                      {"transformer-1.4b", 1364, 0}, {"retnet-1.4b", 1352, 1048576}, {"gla-1.4b", 1366, 524288},
                      {"gsa-1.4b", 1377, 262144},    {"kda-1.4b", 1416, 524288},     {"cyfa-1.4b", 1394, 524288}};
  for (const Row& row : rows) {
    const CausalLM m = own(row.name);
    EXPECT_NEAR(static_cast<double>(m.table().numel()) * 1e-6, row.millions, 0.005 * row.millions) << row.name;
    EXPECT_EQ(m.memory_scalars(), row.state) << row.name;
  }
}

TEST(Configs, OwnConfigsAreAllGood) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(std::string(CYFA_SOURCE_DIR) + "/configs")) {
    if (entry.path().extension() != ".json") continue;
    EXPECT_NO_THROW(CausalLM(ModelConfig::read(entry.path()))) << entry.path();
  }
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
  EXPECT_EQ(all, count({{"silu_streams", {"q", "k", "v"}}}));
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

// An invalid config and the text that its error must contain.
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
                                                           {{{"silu_streams", {"q", "x"}}}, "silu_streams"},
                                                           {{{"silu_streams", {"q", "q"}}}, "silu_streams"},
                                                           {{{"silu_streams", "qk"}}, "silu_streams"},
                                                           {{{"conv_activation", "silu"}}, "conv_activation"},
                                                           {{{"norm_eps", nullptr}, {"vocab_size", 1e300}}, "vocab_size"}};
  for (const auto& [changes, words] : cases)
    EXPECT_NE(message(changes).find(words), std::string::npos) << changes << "\n" << message(changes);
  EXPECT_EQ(message({{"transformers_version", "9"}, {"use_cache", false}, {"eos_token_id", Json::array({1, 2})}}), "no error");
  EXPECT_THROW(ModelConfig::parse(Json::array()), ConfigError);
}

std::string refusal(const Json& config) {
  try {
    ModelConfig::parse(config);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Configs, KeysOfAnotherMixerAreRefusedWithItsName) {
  const std::vector<std::tuple<const char*, const char*, Json, const char*>> cases = {
      {"Gsa", "sliding_window", 8, "a key of mistral"},
      {"Gla", "num_slots", 8, "gsa"},
      {"Mamba2", "num_slots", 8, "raven"},
      {"Transformer", "sliding_window", 8, "a key of mistral"},
      {"SlidingWindow", "attention_bias", false, "llama"},
      {"DeltaNet", "output_gate_activation", "swish", "a key of gated_deltanet"},
      {"Kda", "use_gk", true, "a key of gla"},
      {"CyclicFlow", "topk", 4, "a key of raven"},
      {"BlurryWindow", "readout", "learned", "a key of cyclic_flow_attention"},
      {"Mamba3", "conv_kernel", 4, "a key of mamba2"}};
  for (const auto& [name, key, value, words] : cases) {
    bool found = false;
    for (const ModelCase& c : model_cases()) {
      if (c.name != name) continue;
      found = true;
      Json config = c.config;
      EXPECT_EQ(refusal(config), "no error") << name;
      config[key] = value;
      EXPECT_NE(refusal(config).find(key), std::string::npos) << name << ": " << refusal(config);
      EXPECT_NE(refusal(config).find(words), std::string::npos) << name << ": " << refusal(config);
    }
    EXPECT_TRUE(found) << name;
  }
}

TEST(Configs, WhatAnOriginCanAndThisProgramCannotIsRefused) {
  const std::vector<std::pair<const char*, Json>> cases = {{"Gla", {{"attn", {{"layers", {1}}}}}},
                                                           {"Gla", {{"use_gv", true}}},
                                                           {"Gla", {{"elementwise_affine", false}}},
                                                           {"Raven", {{"topk", 11}}},
                                                           {"Kda", {{"safe_gate", true}}},
                                                           {"Kda", {{"num_v_heads", 4}}},
                                                           {"Gsa", {{"use_output_gate", true}}},
                                                           {"Transformer", {{"rope_scaling", {{"type", "linear"}}}}},
                                                           {"Transformer", {{"rope_parameters", {{"rope_type", "yarn"}}}}},
                                                           {"Transformer", {{"num_key_value_heads", 3}}},
                                                           {"Transformer", {{"intermediate_size", nullptr}}},
                                                           {"Mamba2", {{"num_heads", 5}}},
                                                           {"Mamba2", {{"dt_limit", {1.0, 0.5}}}},
                                                           {"Mamba3", {{"rope_fraction", 0.25}}},
                                                           {"CyclicFlow", {{"clock", "fixed"}}},
                                                           {"CyclicFlow", {{"rho", 2}}},
                                                           {"RetNet", {{"architectures", {"GLAForCausalLM"}}}}};
  for (const auto& [name, changes] : cases) {
    for (const ModelCase& c : model_cases()) {
      if (c.name != name) continue;
      Json config = c.config;
      config.update(changes);
      // For some keys, the error is about another key.
      std::string key = changes.begin().key();
      if (key == "use_gv") key = "use_gk";
      if (key == "clock") key = "rho";
      if (key == "rope_parameters") key = "rope_type";
      EXPECT_NE(refusal(config).find(key), std::string::npos) << name << " " << changes << ": " << refusal(config);
    }
  }
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

// Which mixers can be captured in a CUDA graph, and the reasons of those that cannot.
TEST(Configs, MixersSayWhetherAStepNeedsTheHost) {
  const auto reason = [](const char* name) { return own(name).layers()[0].block->mixer().needs_host(); };
  for (const char* name : {"parity/cyfa", "parity/gdn", "parity/mamba3"}) EXPECT_EQ(reason(name), "") << name;
  for (const char* name : {"parity/bla-rho2", "parity/swa", "parity/transformer"}) EXPECT_NE(reason(name), "") << name;
}

Json hybrid_config(const Json& keys) {
  Json config = small_config(3);
  config.update(keys);
  return config;
}

TEST(Hybrids, TheAttnObjectSaysWhichLayersAreAttention) {
  const Json full = {{"layers", {1}}, {"num_heads", 4}, {"num_kv_heads", 2}, {"rope_theta", 5000.0}},
             window = {{"layers", {2}}, {"num_heads", 3}, {"window_size", 9}, {"qkv_bias", true}};
  const CausalLM m(ModelConfig::parse(hybrid_config({{"attn", Json::array({full, window})}})));
  EXPECT_EQ(m.config().layer_types, (std::vector<std::string>{"cyclic_flow_attention", "full_attention", "sliding_attention"}));
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ParameterSpec& spec : m.table().specs()) shapes[spec.name] = spec.shape;
  // Names and shapes of flash-linear-attention's Attention, with head width hidden_size / num_heads.
  EXPECT_EQ(shapes.at("model.layers.1.attn.k_proj.weight"), (std::vector<int64_t>{24, 48}));
  EXPECT_FALSE(shapes.contains("model.layers.1.attn.q_proj.bias"));
  EXPECT_EQ(shapes.at("model.layers.2.attn.q_proj.bias"), (std::vector<int64_t>{48}));
  EXPECT_TRUE(shapes.contains("model.layers.0.attn.readout"));
  EXPECT_TRUE(m.layers()[1].block->mixer().state()[0].grows);
  EXPECT_EQ(m.layers()[2].block->mixer().state()[0].shape, (std::vector<int64_t>{9, 3, 16}));
}

TEST(Hybrids, BadPlansAreRefusedByName) {
  const auto error = [](const Json& keys) {
    try {
      ModelConfig::parse(hybrid_config(keys));
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto says = [&](const Json& keys, const std::string& words) {
    EXPECT_NE(error(keys).find(words), std::string::npos) << error(keys);
  };
  says({{"attn", {{"num_heads", 4}}}}, "attn.layers is absent");
  says({{"attn", {{"layers", {3}}, {"num_heads", 4}}}}, "num_hidden_layers - 1 = 2");
  says({{"attn", {{"layers", {1, 1}}, {"num_heads", 4}}}}, "named twice");
  says({{"attn", {{"layers", {1}}, {"num_heads", 5}}}}, "attn.num_heads is 5");
  says({{"attn", {{"layers", {1}}, {"num_heads", 4}, {"heads", 1}}}}, "attn.heads");
  says({{"layer_types", {"full_attention"}}}, "each of the 3 layers");
  says({{"layer_types", {"full_attention", "mystery", "mystery"}}, {"layer_configs", {{"full_attention", {{"num_attention_heads", 4}}}}}},
       "model_type is \"mystery\"");
  says({{"layer_types", Json::array({"cyclic_flow_attention", "cyclic_flow_attention", "sliding_attention"})},
        {"layer_configs", {{"sliding_attention", {{"num_attention_heads", 4}}}}}},
       "layer_configs.sliding_attention.sliding_window is absent");
  says({{"layer_configs", {{"gla", Json::object()}}}}, "where there are no layer_types");
  says({{"attn", {{"layers", {1}}, {"num_heads", 4}}}, {"layer_types", Json::array()}}, "layer_types");
}

// describe() contains what a front end needs to build the model itself.
TEST(Configs, AreDescribedAsData) {
  const CausalLM m(ModelConfig::parse(small_config()));
  const Json d = describe(m);
  EXPECT_EQ(d["config"]["num_slots"], 10);
  EXPECT_EQ(d["config"]["conv_size"], 4) << "a default";
  EXPECT_EQ(d["layout"]["mixer"], "attn");
  ASSERT_EQ(d["layers"].size(), 2U);
  EXPECT_EQ(d["layers"][0]["type"], "cyclic_flow_attention");
  EXPECT_EQ(d["layers"][0]["states"][2]["name"], "clock");
  EXPECT_EQ(d["layers"][0]["states"][2]["dtype"], "float64");
  ASSERT_EQ(d["parameters"].size(), m.table().specs().size());
  int64_t numbers = 0;
  for (const Json& p : d["parameters"]) {
    int64_t numel = 1;
    for (const Json& n : p["shape"]) numel *= n.get<int64_t>();
    numbers += numel;
    EXPECT_FALSE(p["init"].get<std::string>().empty());
  }
  EXPECT_EQ(numbers, d["parameter_count"]);
  for (const auto& kind : mixer_kinds()) {  // describe() works for every kind
    if (kind.layout.mlp_width == BackboneLayout::Mlp::kGiven) continue;
    EXPECT_FALSE(describe(CausalLM(ModelConfig::parse({{"model_type", kind.model_type}, {"num_hidden_layers", 1}})))["layers"].empty());
  }
}

}  // namespace
}  // namespace cyfa::test
