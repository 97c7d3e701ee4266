#include "cyfa/mixers/gated_linear_attention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 4, groups = 4, K = 0, V = 0;
  std::string feature_map;
  ShortConvConfig conv;
  bool columns = false;  // the gate is on the columns of the state: use_gv
  int64_t rank = 16;     // gate_low_rank_dim
  double normalizer = 16;
  std::optional<double> clamp_min;
  bool output_gate = true;
  std::string norm_name;
};

class GatedLinearAttention final : public StreamMixer {
 public:
  GatedLinearAttention(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, gates = c.groups * (c.columns ? c.V : c.K);
    const Init normal = Init::normal(c.backbone.initializer_range);
    const std::string gate = c.columns ? "gv_proj" : "gk_proj";
    add_streams(scope, c.backbone, {c.heads * c.K, c.groups * c.K, c.groups * c.V}, c.conv);
    memory_ = keep_memory({c.heads, c.K, c.V});
    forget_down_ = scope.matrix(gate + ".0.weight", {c.rank, D}, normal);
    forget_up_ = scope.matrix(gate + ".1.weight", {gates, c.rank}, normal);
    forget_bias_ = scope.other(gate + ".1.bias", {gates}, Init::zeros());
    if (c.output_gate) g_proj_ = scope.matrix("g_proj.weight", {c.heads * c.V, D}, normal);
    norm_ = scope.other(c.norm_name + ".weight", {c.V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, c.heads * c.V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    std::vector<Call::Projection> others = {{forget_down_, {}}};
    if (c_.output_gate) others.push_back({g_proj_, {}});
    const std::vector<at::Tensor> y = project(call, {c_.conv.on, c_.conv.on, c_.conv.on}, others);
    const int64_t each = c_.heads / c_.groups;
    const auto shared = [&](const at::Tensor& x) { return repeat_heads(split_heads(x, c_.groups), each); };
    at::Tensor log_alpha = log_sigmoid_gate(shared(call.linear(y[3], forget_up_, forget_bias_))) / c_.normalizer;
    if (c_.clamp_min) log_alpha = log_alpha.clamp_min(*c_.clamp_min);
    const at::Tensor q = feature_map(c_.feature_map, split_heads(y[0], c_.heads)), k = feature_map(c_.feature_map, shared(y[1])),
                     v = shared(y[2]);
    const at::Tensor o = c_.columns ? call.column_gated_la(memory_, q, k, v, log_alpha) : call.row_gated_la(memory_, q, k, v, log_alpha);
    const at::Tensor out = c_.output_gate ? gated_norm(o, call[norm_], c_.backbone.norm_eps, split_heads(y[4], c_.heads), false)
                                          : ops::rms_norm(o, call[norm_], c_.backbone.norm_eps);
    return call.linear(join_heads(out), o_proj_);
  }

  double flops_per_token() const override { return linear_attention_flops(c_.heads, c_.K, c_.V); }

 private:
  Config c_;
  ParameterId forget_down_ = 0, forget_up_ = 0, forget_bias_ = 0, g_proj_ = 0, norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

}  // namespace

MixerFactory read_gated_linear_attention(ConfigReader& config, const BackboneShape& backbone) {
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", c.heads, 1, 1 << 20);
  c.groups = read_groups(config, "num_kv_heads", c.heads);
  c.K = head_width(config, "expand_k", 0.5, backbone.hidden_size, c.heads);
  c.V = head_width(config, "expand_v", 1, backbone.hidden_size, c.heads);
  c.feature_map = read_feature_map(config, "identity");
  c.conv = ShortConvConfig::read(config, false);
  c.columns = config.flag("use_gv", false);
  if (config.flag("use_gk", true) == c.columns)
    config.fail("use_gk", "one of use_gk and use_gv: a gate on the rows of the state, or on its columns");
  c.rank = config.integer("gate_low_rank_dim", c.rank, 1, 1 << 20);
  c.normalizer = config.number("gate_logit_normalizer", c.normalizer, 1e-3, 1e6);
  c.clamp_min = config.number_or_null("clamp_min", -1e30, 0);
  c.output_gate = config.flag("use_output_gate", true);
  c.norm_name = output_norm_name(config, c.output_gate);
  fla_bookkeeping(config);
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<GatedLinearAttention>(c, scope); };
}

}  // namespace cyfa
