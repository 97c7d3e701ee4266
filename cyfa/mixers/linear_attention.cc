#include "cyfa/mixers/linear_attention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 4, groups = 4, K = 0, V = 0;
  std::string feature_map;
  bool norm_q = false, norm_k = false;
};

// q or k as features: the product of two affine maps, or a fixed function.
struct Features {
  ParameterId first = 0, first_bias = 0, second = 0, second_bias = 0;
};

class LinearAttention final : public StreamMixer {
 public:
  LinearAttention(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size;
    const Init normal = Init::normal(c.backbone.initializer_range);
    add_streams(scope, c.backbone, {c.heads * c.K, c.groups * c.K, c.groups * c.V}, {});
    memory_ = keep_memory({c.heads, c.K, c.V});
    if (c.feature_map == kProduct) {
      const char* names[] = {"feature_map_q", "feature_map_k"};
      for (size_t i = 0; i < 2; ++i) {
        const ParameterScope map = scope.sub(names[i]);
        maps_[i].first = map.matrix("layer1.weight", {c.K, c.K}, normal);
        maps_[i].first_bias = map.other("layer1.bias", {c.K}, Init::zeros());
        maps_[i].second = map.matrix("layer2.weight", {c.K, c.K}, normal);
        maps_[i].second_bias = map.other("layer2.bias", {c.K}, Init::zeros());
      }
    }
    norm_ = scope.other("norm.weight", {c.V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, c.heads * c.V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    const std::vector<at::Tensor> y = project(call, {false, false, false});
    const int64_t each = c_.heads / c_.groups;
    const at::Tensor q = features(call, 0, split_heads(y[0], c_.heads), c_.norm_q);
    const at::Tensor k = features(call, 1, repeat_heads(split_heads(y[1], c_.groups), each), c_.norm_k);
    const at::Tensor o = call.la(memory_, q, k, repeat_heads(split_heads(y[2], c_.groups), each));
    return call.linear(join_heads(ops::rms_norm(o, call[norm_], c_.backbone.norm_eps)), o_proj_);
  }

  double flops_per_token() const override { return linear_attention_flops(c_.heads, c_.K, c_.V); }

  static constexpr const char* kProduct = "elementwise_product";

 private:
  at::Tensor features(Call& call, size_t i, const at::Tensor& x, bool normalise) const {
    const Features& map = maps_[i];
    const at::Tensor y = c_.feature_map == kProduct
                             ? call.linear(x, map.first, map.first_bias) * call.linear(x, map.second, map.second_bias)
                             : feature_map(c_.feature_map, x);
    return normalise ? y / (y.sum(-1, true) + 1e-4) : y;
  }

  Config c_;
  Features maps_[2];
  ParameterId norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

}  // namespace

MixerFactory read_linear_attention(ConfigReader& config, const BackboneShape& backbone) {
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", c.heads, 1, 1 << 20);
  c.groups = read_groups(config, "num_kv_heads", c.heads);
  c.K = head_width(config, "expand_k", 1, backbone.hidden_size, c.heads);
  c.V = head_width(config, "expand_v", 1, backbone.hidden_size, c.heads);
  c.feature_map = config.word("feature_map", LinearAttention::kProduct, {LinearAttention::kProduct, "identity", "relu", "elu"});
  c.norm_q = config.flag("norm_q", false);
  c.norm_k = config.flag("norm_k", false);
  config.only("tie_feature_map_qk", false);
  config.only("norm_feature_map", false);
  fla_bookkeeping(config);
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<LinearAttention>(c, scope); };
}

}  // namespace cyfa
