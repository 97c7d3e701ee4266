#include "cyfa/mixers/softmax_attention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 32, groups = 32;  // num_attention_heads, num_key_value_heads
  int64_t width = 64;               // head_dim
  int64_t window = 0;               // sliding_window; 0 for full attention
  double theta = 10000;             // rope_theta
  bool bias = false;                // qkv_bias: bias of the q, k and v projections
};

class SoftmaxAttention final : public Mixer {
 public:
  SoftmaxAttention(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, wide = c.heads * c.width, narrow = c.groups * c.width;
    const Init normal = Init::normal(c.backbone.initializer_range);
    const auto projection = [&](const std::string& name, int64_t width) {
      Call::Projection p(scope.matrix(name + ".weight", {width, D}, normal));
      if (c.bias) p.bias = scope.other(name + ".bias", {width}, Init::zeros());
      return p;
    };
    q_proj_ = projection("q_proj", wide);
    k_proj_ = projection("k_proj", narrow);
    v_proj_ = projection("v_proj", narrow);
    o_proj_ = scope.matrix("o_proj.weight", {D, wide}, normal);
    const bool grows = c.window == 0;
    cache_ = keep({.name = "k", .shape = {c.window, c.groups, c.width}, .grows = grows});
    keep({.name = "v", .shape = {c.window, c.groups, c.width}, .grows = grows});
    tokens_ = keep_position();
  }

  std::string needs_host() const override { return "softmax attention reads back how many tokens its cache holds"; }
  at::Tensor mix(Call& call) const override {
    Call::Projections y = call.project({q_proj_, k_proj_, v_proj_});
    const at::Tensor at_token = call.positions(tokens_);
    const at::Tensor q = rotary(split_heads(y[q_proj_.weight], c_.heads), at_token, c_.theta);
    const at::Tensor k = rotary(split_heads(y[k_proj_.weight], c_.groups), at_token, c_.theta);
    const at::Tensor o = call.attention(cache_, q, k, split_heads(y[v_proj_.weight], c_.groups), c_.window);
    return call.linear(join_heads(o), o_proj_);
  }

  // Scores and weighted values over half of the context (the causal average), or over the window.
  double flops_per_token() const override {
    const auto seen = static_cast<double>(c_.window > 0 ? std::min(c_.window, c_.backbone.context) : c_.backbone.context / 2);
    return 4.0 * static_cast<double>(c_.heads * c_.width) * seen;
  }

 private:
  Config c_;
  Call::Projection q_proj_ = 0, k_proj_ = 0, v_proj_ = 0;
  ParameterId o_proj_ = 0;
  size_t cache_ = 0, tokens_ = 0;
};

// `groups` is num_key_value_heads where it is absent; nullopt for as many as there are heads.
Config read_config(ConfigReader& config, const BackboneShape& backbone, std::optional<int64_t> groups) {
  constexpr int64_t kMost = 1 << 20;
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_attention_heads", c.heads, 1, kMost);
  c.groups = read_groups(config, "num_key_value_heads", c.heads, groups);
  c.width = config.integer("head_dim", backbone.hidden_size / c.heads, 1, kMost);
  if (c.width % 2 != 0) config.fail("head_dim", "an even width: rotary positions turn pairs");
  // The rotary base is a top-level key in older configs and a member of rope_parameters in newer ones.
  c.theta = config.number("rope_theta", c.theta, 1e-3, 1e12);
  if (const Json* rope = config.object("rope_parameters")) {
    ConfigReader inner(*rope);
    c.theta = inner.number("rope_theta", c.theta, 1e-3, 1e12);
    inner.word("rope_type", "default", {"default"});
    if (!inner.unknown().empty()) config.fail("rope_parameters", "rope_theta and rope_type alone");
  }
  config.only("rope_scaling", nullptr);
  config.only("attention_dropout", 0.0);
  return c;
}

MixerFactory factory(const Config& c) { return factory_of<SoftmaxAttention>(c); }

constexpr int64_t kMostWindow = int64_t{1} << 30;

}  // namespace

MixerFactory read_llama_attention(ConfigReader& config, const BackboneShape& backbone) {
  const Config c = read_config(config, backbone, std::nullopt);
  config.only("attention_bias", false);
  config.only("mlp_bias", false);
  config.bookkeeping({"pretraining_tp"});
  return factory(c);
}

MixerFactory read_mistral_attention(ConfigReader& config, const BackboneShape& backbone) {
  Config c = read_config(config, backbone, 8);
  c.window = config.integer_or_null("sliding_window", 4096, 1, kMostWindow).value_or(0);
  return factory(c);
}

MixerFactory read_sliding_attention(ConfigReader& config, const BackboneShape& backbone) {
  Config c = read_config(config, backbone, std::nullopt);
  c.window = config.integer("sliding_window", 0, 1, kMostWindow);
  if (c.window == 0) config.fail("sliding_window", "the tokens that a token sees");
  return factory(c);
}

MixerFactory read_attn_object(ConfigReader& config, const BackboneShape& backbone) {
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", 0, 1, 1 << 20);
  if (c.heads == 0) config.fail("num_heads", "the heads of these layers");
  c.groups = read_groups(config, "num_kv_heads", c.heads);
  if (backbone.hidden_size % (2 * c.heads) != 0) config.fail("num_heads", "heads of the same even width, hidden_size / num_heads");
  c.width = backbone.hidden_size / c.heads;
  c.window = config.integer("window_size", 0, 1, kMostWindow);
  c.theta = config.number("rope_theta", c.theta, 1e-3, 1e12);
  c.bias = config.flag("qkv_bias", c.bias);
  config.only("qk_norm", false);
  return factory(c);
}

}  // namespace cyfa
