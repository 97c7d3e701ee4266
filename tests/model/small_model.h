// Small models of every mixer for the tests, with irregular sizes.
#pragma once

#include <filesystem>

#include "cyfa/model/causal_lm.h"

namespace cyfa::test {

inline Json small_config(int64_t layers = 2) {
  return {{"model_type", "cyclic_flow_attention"},
          {"hidden_size", 48},
          {"num_hidden_layers", layers},
          {"num_heads", 3},
          {"head_dim", 16},
          {"num_slots", 10},
          {"vocab_size", 61},
          {"intermediate_size", 80},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

// A config and its name in the tests.
struct ModelCase {
  std::string name;
  Json config;
};

// Small models of every kind in the registry and of every option that changes what a kind computes.
inline std::vector<ModelCase> model_cases() {
  const auto backbone = [](const char* type, const Json& keys) {
    Json config = {{"model_type", type}, {"hidden_size", 48}, {"num_hidden_layers", 2},
                   {"vocab_size", 61},   {"bos_token_id", 1}, {"eos_token_id", 2}};
    if (!std::string(type).starts_with("mamba")) config["intermediate_size"] = 80;
    config.update(keys);
    return config;
  };
  const auto cyclic_flow = [](const Json& keys) {
    Json config = small_config();
    config.update(keys);
    return config;
  };
  const Json mamba = {{"head_dim", 16}, {"state_size", 12}};
  const auto with = [](Json config, const Json& keys) {
    config.update(keys);
    return config;
  };
  return {
      {"CyclicFlow", cyclic_flow(Json::object())},
      {"CyclicFlowNoForgetGate", cyclic_flow({{"use_forget_gate", false}})},
      {"CyclicFlowConstantClock", cyclic_flow({{"clock", "constant"}})},
      {"CyclicFlowFixedClock", cyclic_flow({{"clock", "fixed"}, {"rho", 3}})},
      {"CyclicFlowIdentityReadout", cyclic_flow({{"readout", "identity"}})},
      {"CyclicFlowNoShortConv", cyclic_flow({{"use_short_conv", false}})},
      {"CyclicFlowNoQkNorm", cyclic_flow({{"use_qk_norm", false}})},
      {"CyclicFlowSilu", cyclic_flow({{"silu_streams", {"q", "k", "v"}}})},
      {"CyclicFlowSiluOfKeysWithoutConv", cyclic_flow({{"silu_streams", {"k"}}, {"use_short_conv", false}})},
      {"CyclicFlowConvBias", cyclic_flow({{"conv_bias", true}})},
      {"CyclicFlowClockWithGradient", cyclic_flow({{"clock_stop_gradient", false}})},
      {"CyclicFlowWide", cyclic_flow({{"num_slots", 64}, {"expand_v", 2.0}})},
      {"CyclicFlowTiedHead", cyclic_flow({{"tie_word_embeddings", true}})},
      {"HybridByAttn", cyclic_flow({{"num_hidden_layers", 3},
                                    {"attn", Json::array({{{"layers", {1}}, {"num_heads", 4}, {"num_kv_heads", 2}},
                                                          {{"layers", {2}}, {"num_heads", 3}, {"window_size", 7}, {"qkv_bias", true}}})}})},
      {"HybridByLayerTypes", cyclic_flow({{"num_hidden_layers", 4},
                                          {"layer_types", {"cyclic_flow_attention", "sliding_attention", "full_attention", "gla"}},
                                          {"layer_configs",
                                           {{"sliding_attention", {{"num_attention_heads", 4}, {"sliding_window", 5}}},
                                            {"full_attention", {{"num_attention_heads", 3}}},
                                            {"gla", {{"num_heads", 2}}}}}})},
      {"Transformer", backbone("llama", {{"num_attention_heads", 4}, {"num_key_value_heads", 2}})},
      {"SlidingWindow", backbone("mistral", {{"num_attention_heads", 3}, {"num_key_value_heads", 3}, {"sliding_window", 7}})},
      {"SlidingWindowOfOne", backbone("mistral", {{"num_attention_heads", 3}, {"num_key_value_heads", 1}, {"sliding_window", 1}})},
      {"SlidingWindowOpen",
       backbone("mistral", {{"num_attention_heads", 3}, {"num_key_value_heads", nullptr}, {"sliding_window", nullptr}})},
      {"LinearAttention", backbone("linear_attn", {{"num_heads", 3}})},
      {"LinearAttentionElu", backbone("linear_attn", {{"num_heads", 4}, {"num_kv_heads", 2}, {"feature_map", "elu"}, {"norm_q", true}})},
      {"RetNet", backbone("retnet", {{"num_heads", 3}})},
      {"RetNetConv", backbone("retnet", {{"num_heads", 3}, {"use_short_conv", true}, {"use_output_gate", false}})},
      {"Gla", backbone("gla", {{"num_heads", 3}})},
      {"GlaGrouped", backbone("gla", {{"num_heads", 4}, {"num_kv_heads", 2}, {"use_short_conv", true}, {"clamp_min", -0.05}})},
      {"GlaColumns", backbone("gla", {{"num_heads", 3}, {"use_gk", false}, {"use_gv", true}})},
      {"Abc", backbone("abc", {{"num_heads", 3}, {"num_slots", 10}})},
      {"AbcConv", backbone("abc", {{"num_heads", 3}, {"num_slots", 5}, {"use_rope", false}, {"use_short_conv", true}})},
      {"Gsa", backbone("gsa", {{"num_heads", 3}, {"num_slots", 10}})},
      {"GsaGrouped", backbone("gsa", {{"num_heads", 4}, {"num_kv_heads", 2}, {"num_slots", 10}, {"use_short_conv", true}})},
      {"Raven", backbone("raven", {{"num_heads", 3}, {"num_slots", 10}, {"topk", 4}})},
      {"RavenGated", backbone("raven", {{"num_heads", 4},
                                        {"num_kv_heads", 2},
                                        {"num_slots", 10},
                                        {"topk", 4},
                                        {"use_output_gate", true},
                                        {"use_rope", true},
                                        {"decay_type", "GLA"},
                                        {"router_type", "mlp"},
                                        {"router_score", "softmax"}})},
      {"BlurryWindow", backbone("blurry_window_attention", {{"num_heads", 3}, {"head_dim", 16}, {"num_slots", 10}})},
      {"BlurryWindowSlow", backbone("blurry_window_attention", {{"num_heads", 3}, {"head_dim", 16}, {"num_slots", 10}, {"rho", 5}})},
      {"Mamba2", backbone("mamba2", mamba)},
      {"Mamba2WithMlp", backbone("mamba2", with(mamba, {{"mlp_intermediate_size", 40},
                                                        {"n_groups", 2},
                                                        {"D_has_hdim", true},
                                                        {"use_bias", true},
                                                        {"norm_before_gate", true},
                                                        {"dt_limit", {0.01, 0.5}}}))},
      {"Mamba3", backbone("mamba3", mamba)},
      {"Mamba3Mimo",
       backbone("mamba3", with(mamba, {{"is_mimo", true}, {"mimo_rank", 3}, {"n_groups", 2}, {"mlp_intermediate_size", 40}}))},
      {"DeltaNet", backbone("delta_net", {{"num_heads", 3}})},
      {"DeltaNetGated",
       backbone("delta_net",
                {{"num_heads", 3}, {"use_gate", true}, {"qk_activation", "elu"}, {"qk_norm", "sum"}, {"allow_neg_eigval", true}})},
      {"GatedDeltaNet", backbone("gated_deltanet", {{"num_heads", 3}, {"head_dim", 16}})},
      {"GatedDeltaNetShared",
       backbone("gated_deltanet", {{"num_heads", 2}, {"num_v_heads", 4}, {"head_dim", 12}, {"expand_v", 1.0}, {"use_short_conv", false}})},
      {"Kda", backbone("kda", {{"num_heads", 3}, {"head_dim", 16}})},
      {"KdaShared", backbone("kda", {{"num_heads", 2}, {"num_v_heads", 4}, {"head_dim", 12}, {"conv_bias", true}})}};
}

// An initialised model with perturbed parameters, so that a test notices a parameter that is ignored.
inline CausalLM small_model(const Json& config, uint64_t seed = 3, at::ScalarType dtype = at::kFloat) {
  CausalLM model(ModelConfig::parse(config));
  model.initialise(seed, dtype);
  const at::NoGradGuard no_grad;
  at::manual_seed(seed);
  for (at::Tensor& p : model.parameters()) p.add_(at::randn(p.sizes()).mul_(0.15).to(dtype));
  return model;
}

inline at::Tensor random_ids(const CausalLM& model, at::IntArrayRef sizes, uint64_t seed = 5) {
  at::manual_seed(seed);
  return at::randint(3, model.config().vocab_size, sizes, at::kLong);
}

// A temporary folder, removed by the destructor.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "cyfa-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace cyfa::test
