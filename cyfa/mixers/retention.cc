#include "cyfa/mixers/retention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : QkvConfig {
  std::string feature_map = {};
  bool output_gate = true;
  std::string norm_name = {};
};

class Retention final : public QkvMixer {
 public:
  Retention(const Config& c, const ParameterScope& scope) : c_(c) {
    const auto [H, G, K, V] = c.shape;
    const int64_t D = c.backbone.hidden_size;
    const Init normal = c.normal();
    add_qkv(scope, c);
    memory_ = keep_memory({H, K, V});
    position_ = keep_position();
    if (c.output_gate) g_proj_ = scope.matrix("g_proj.weight", {H * V, D}, normal);
    norm_ = scope.other(c.norm_name + ".weight", {V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    std::vector<Call::Projection> others;
    if (c_.output_gate) others.emplace_back(g_proj_);
    Qkv y = project(call, {c_.conv.on, c_.conv.on, c_.conv.on}, others);
    const int64_t H = c_.shape.heads, G = c_.shape.groups, each = c_.shape.each();
    const at::Tensor position = call.count_positions(position_);
    const at::Tensor q = rotary(feature_map(c_.feature_map, split_heads(y.q, H)), position);
    const at::Tensor k = repeat_heads(rotary(feature_map(c_.feature_map, split_heads(y.k, G)), position), each);
    const at::Tensor v = repeat_heads(split_heads(y.v, G), each);
    const at::Tensor o = call.recurrence("fixed_scalar_gated_la", memory_, {.q = q, .k = k, .v = v, .log_alpha = log_gamma(q)});
    const at::Tensor out = c_.output_gate ? gated_norm(o, call[norm_], c_.backbone.norm_eps, split_heads(y[g_proj_], H), false)
                                          : ops::rms_norm(o, call[norm_], c_.backbone.norm_eps);
    return call.linear(join_heads(out), o_proj_);
  }

  double flops_per_token() const override { return linear_attention_flops(c_.shape.heads, c_.shape.K, c_.shape.V); }

 private:
  // gamma_h = 1 - 2^(-5 - h).
  at::Tensor log_gamma(const at::Tensor& like) const {
    const at::Tensor h = at::arange(c_.shape.heads, like.options().dtype(at::kDouble));
    return at::log1p(-at::pow(2.0, -5.0 - h)).to(at::promote_types(like.scalar_type(), at::kFloat));
  }

  Config c_;
  ParameterId g_proj_ = 0, norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0, position_ = 0;
};

}  // namespace

MixerFactory read_retention(ConfigReader& config, const BackboneShape& backbone) {
  Config c{QkvConfig::read(config, backbone, HeadShape::Shares{.heads = 8, .expand_k = 1, .expand_v = 2}, false)};
  if (c.shape.K % 2 != 0) config.fail("expand_k", "heads of an even width: rotary positions turn pairs");
  c.feature_map = read_feature_map(config, "identity");
  c.output_gate = config.flag("use_output_gate", true);
  c.norm_name = output_norm_name(config, c.output_gate);
  fla_bookkeeping(config);
  return factory_of<Retention>(c);
}

}  // namespace cyfa
