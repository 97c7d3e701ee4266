#include "cyfa/mixers/gated_linear_attention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : QkvConfig {
  std::string feature_map = {};
  bool columns = false;  // use_gv: gate the columns of the state instead of the rows
  int64_t rank = 16;     // gate_low_rank_dim
  double normalizer = 16;
  std::optional<double> clamp_min = {};
  bool output_gate = true;
  std::string norm_name = {};
};

class GatedLinearAttention final : public QkvMixer {
 public:
  GatedLinearAttention(const Config& c, const ParameterScope& scope) : c_(c) {
    const auto [H, G, K, V] = c.shape;
    const int64_t D = c.backbone.hidden_size, gates = G * (c.columns ? V : K);
    const Init normal = c.normal();
    const std::string gate = c.columns ? "gv_proj" : "gk_proj";
    add_qkv(scope, c);
    memory_ = keep_memory({H, K, V});
    forget_first_ = scope.matrix(gate + ".0.weight", {c.rank, D}, normal);
    forget_second_ = scope.matrix(gate + ".1.weight", {gates, c.rank}, normal);
    forget_bias_ = scope.other(gate + ".1.bias", {gates}, Init::zeros());
    if (c.output_gate) g_proj_ = scope.matrix("g_proj.weight", {H * V, D}, normal);
    norm_ = scope.other(c.norm_name + ".weight", {V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    std::vector<Call::Projection> others = {forget_first_};
    if (c_.output_gate) others.emplace_back(g_proj_);
    Qkv y = project(call, {c_.conv.on, c_.conv.on, c_.conv.on}, others);
    const auto shared = [&](const at::Tensor& x) { return repeat_heads(split_heads(x, c_.shape.groups), c_.shape.each()); };
    at::Tensor log_alpha = log_sigmoid_gate(shared(call.linear(y[forget_first_], forget_second_, forget_bias_))) / c_.normalizer;
    if (c_.clamp_min) log_alpha = log_alpha.clamp_min(*c_.clamp_min);
    const at::Tensor q = feature_map(c_.feature_map, split_heads(y.q, c_.shape.heads)), k = feature_map(c_.feature_map, shared(y.k));
    const at::Tensor o = call.recurrence(c_.columns ? "column_gated_la" : "row_gated_la", memory_,
                                         {.q = q, .k = k, .v = shared(y.v), .log_alpha = log_alpha});
    const at::Tensor out = c_.output_gate ? gated_norm(o, call[norm_], c_.backbone.norm_eps, split_heads(y[g_proj_], c_.shape.heads), false)
                                          : ops::rms_norm(o, call[norm_], c_.backbone.norm_eps);
    return call.linear(join_heads(out), o_proj_);
  }

  double flops_per_token() const override { return linear_attention_flops(c_.shape.heads, c_.shape.K, c_.shape.V); }

 private:
  Config c_;
  ParameterId forget_first_ = 0, forget_second_ = 0, forget_bias_ = 0, g_proj_ = 0, norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

}  // namespace

MixerFactory read_gated_linear_attention(ConfigReader& config, const BackboneShape& backbone) {
  Config c{QkvConfig::read(config, backbone, HeadShape::Shares{.heads = 4, .expand_k = 0.5, .expand_v = 1}, false)};
  c.feature_map = read_feature_map(config, "identity");
  c.columns = config.flag("use_gv", false);
  if (config.flag("use_gk", true) == c.columns)
    config.fail("use_gk", "one of use_gk and use_gv: a gate on the rows of the state, or on its columns");
  c.rank = config.integer("gate_low_rank_dim", c.rank, 1, 1 << 20);
  c.normalizer = config.number("gate_logit_normalizer", c.normalizer, 1e-3, 1e6);
  c.clamp_min = config.number_or_null("clamp_min", -1e30, 0);
  c.output_gate = config.flag("use_output_gate", true);
  c.norm_name = output_norm_name(config, c.output_gate);
  fla_bookkeeping(config);
  return factory_of<GatedLinearAttention>(c);
}

}  // namespace cyfa
