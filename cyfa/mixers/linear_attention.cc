#include "cyfa/mixers/linear_attention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : QkvConfig {
  std::string feature_map = {};
  bool norm_q = false, norm_k = false;
};

// The feature map of q or k: the elementwise product of two affine maps, or a fixed function.
struct Features {
  ParameterId first = 0, first_bias = 0, second = 0, second_bias = 0;
};

class LinearAttention final : public QkvMixer {
 public:
  LinearAttention(const Config& c, const ParameterScope& scope) : c_(c) {
    const auto [H, G, K, V] = c.shape;
    const int64_t D = c.backbone.hidden_size;
    const Init normal = c.normal();
    add_qkv(scope, c);
    memory_ = keep_memory({H, K, V});
    if (c.feature_map == kProduct) {
      const char* names[] = {"feature_map_q", "feature_map_k"};
      for (size_t i = 0; i < 2; ++i) {
        const ParameterScope map = scope.sub(names[i]);
        maps_[i].first = map.matrix("layer1.weight", {K, K}, normal);
        maps_[i].first_bias = map.other("layer1.bias", {K}, Init::zeros());
        maps_[i].second = map.matrix("layer2.weight", {K, K}, normal);
        maps_[i].second_bias = map.other("layer2.bias", {K}, Init::zeros());
      }
    }
    norm_ = scope.other("norm.weight", {V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    const Qkv y = project(call, {false, false, false});
    const auto shared = [&](const at::Tensor& x) { return repeat_heads(split_heads(x, c_.shape.groups), c_.shape.each()); };
    const at::Tensor q = features(call, 0, split_heads(y.q, c_.shape.heads), c_.norm_q);
    const at::Tensor k = features(call, 1, shared(y.k), c_.norm_k);
    const at::Tensor o = call.recurrence("la", memory_, {.q = q, .k = k, .v = shared(y.v)});
    return call.linear(join_heads(ops::rms_norm(o, call[norm_], c_.backbone.norm_eps)), o_proj_);
  }

  double flops_per_token() const override { return linear_attention_flops(c_.shape.heads, c_.shape.K, c_.shape.V); }

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
  Config c{{backbone, HeadShape::of_model_width(config, backbone, {.heads = 4, .expand_k = 1, .expand_v = 1}), {}}};
  c.feature_map = config.word("feature_map", LinearAttention::kProduct, {LinearAttention::kProduct, "identity", "relu", "elu"});
  c.norm_q = config.flag("norm_q", false);
  c.norm_k = config.flag("norm_k", false);
  config.only("tie_feature_map_qk", false);
  config.only("norm_feature_map", false);
  fla_bookkeeping(config);
  return factory_of<LinearAttention>(c);
}

}  // namespace cyfa
