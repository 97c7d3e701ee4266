#include "cyfa/mixers/retention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 8, groups = 8, K = 0, V = 0;
  std::string feature_map;
  ShortConvConfig conv;
  bool output_gate = true;
  std::string norm_name;
};

class Retention final : public StreamMixer {
 public:
  Retention(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size;
    const Init normal = Init::normal(c.backbone.initializer_range);
    add_streams(scope, c.backbone, {c.heads * c.K, c.groups * c.K, c.groups * c.V}, c.conv);
    memory_ = keep_memory({c.heads, c.K, c.V});
    position_ = keep_position();
    if (c.output_gate) g_proj_ = scope.matrix("g_proj.weight", {c.heads * c.V, D}, normal);
    norm_ = scope.other(c.norm_name + ".weight", {c.V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, c.heads * c.V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    const std::vector<at::Tensor> y =
        project(call, {c_.conv.on, c_.conv.on, c_.conv.on},
                c_.output_gate ? std::vector<Call::Projection>{{g_proj_, {}}} : std::vector<Call::Projection>{});
    const int64_t each = c_.heads / c_.groups;
    const at::Tensor position = call.count_positions(position_);
    const at::Tensor q = rotary(feature_map(c_.feature_map, split_heads(y[0], c_.heads)), position);
    const at::Tensor k = repeat_heads(rotary(feature_map(c_.feature_map, split_heads(y[1], c_.groups)), position), each);
    const at::Tensor v = repeat_heads(split_heads(y[2], c_.groups), each);
    const at::Tensor o = call.fixed_scalar_gated_la(memory_, q, k, v, log_gamma(q));
    const at::Tensor out = c_.output_gate ? gated_norm(o, call[norm_], c_.backbone.norm_eps, split_heads(y[3], c_.heads), false)
                                          : ops::rms_norm(o, call[norm_], c_.backbone.norm_eps);
    return call.linear(join_heads(out), o_proj_);
  }

  double flops_per_token() const override { return linear_attention_flops(c_.heads, c_.K, c_.V); }

 private:
  // gamma_h = 1 - 2^(-5 - h).
  at::Tensor log_gamma(const at::Tensor& like) const {
    const at::Tensor h = at::arange(c_.heads, like.options().dtype(at::kDouble));
    return at::log1p(-at::pow(2.0, -5.0 - h)).to(at::promote_types(like.scalar_type(), at::kFloat));
  }

  Config c_;
  ParameterId g_proj_ = 0, norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0, position_ = 0;
};

}  // namespace

MixerFactory read_retention(ConfigReader& config, const BackboneShape& backbone) {
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", c.heads, 1, 1 << 20);
  c.groups = read_groups(config, "num_kv_heads", c.heads);
  c.K = head_width(config, "expand_k", 1, backbone.hidden_size, c.heads);
  c.V = head_width(config, "expand_v", 2, backbone.hidden_size, c.heads);
  if (c.K % 2 != 0) config.fail("expand_k", "heads of an even width: rotary positions turn pairs");
  c.feature_map = read_feature_map(config, "identity");
  c.conv = ShortConvConfig::read(config, false);
  c.output_gate = config.flag("use_output_gate", true);
  c.norm_name = output_norm_name(config, c.output_gate);
  fla_bookkeeping(config);
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<Retention>(c, scope); };
}

}  // namespace cyfa
