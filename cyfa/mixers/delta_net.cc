#include "cyfa/mixers/delta_net.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : QkvConfig {
  std::string activation = {};  // qk_activation
  bool sum_norm = false;        // qk_norm: "l2" or "sum"
  bool beta = true;             // use_beta
  double beta_factor = 1;       // factor on the write strength: 2 with allow_neg_eigval
  bool gate = false;            // use_gate
};

class DeltaNet final : public QkvMixer {
 public:
  DeltaNet(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, H = c.shape.heads, K = c.shape.K, V = c.shape.V;
    const Init normal = c.normal();
    add_qkv(scope, c);
    memory_ = keep_memory({H, K, V});
    if (c.beta) b_proj_ = scope.matrix("b_proj.weight", {H, D}, normal);
    if (c.gate) g_proj_ = scope.matrix("g_proj.weight", {H * V, D}, normal);
    norm_ = scope.other("o_norm.weight", {V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    std::vector<Call::Projection> others;
    if (c_.beta) others.emplace_back(b_proj_);
    if (c_.gate) others.emplace_back(g_proj_);
    Qkv y = project(call, {false, false, true}, others);
    const int64_t H = c_.shape.heads;
    const at::Tensor q = normed(feature_map(c_.activation, split_heads(y.q, H)));
    const at::Tensor k = normed(feature_map(c_.activation, split_heads(y.k, H)));
    const at::Tensor beta = c_.beta ? ops::sigmoid_gate(y[b_proj_]) : at::ones_like(q.select(-1, 0));
    const at::Tensor o = call.recurrence("delta_rule", memory_, {.q = q, .k = k, .v = split_heads(y.v, H), .beta = beta * c_.beta_factor});
    const at::Tensor out = c_.gate ? gated_norm(o, call[norm_], c_.backbone.norm_eps, split_heads(y[g_proj_], H), false)
                                   : ops::rms_norm(o, call[norm_], c_.backbone.norm_eps);
    return call.linear(join_heads(out), o_proj_);
  }

  double flops_per_token() const override { return delta_rule_flops(c_.shape.heads, c_.shape.K, c_.shape.V); }

 private:
  at::Tensor normed(const at::Tensor& x) const { return c_.sum_norm ? x / x.abs().sum(-1, true).clamp_min(1e-6) : l2_norm(x); }

  Config c_;
  ParameterId b_proj_ = 0, g_proj_ = 0, norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

}  // namespace

MixerFactory read_delta_net(ConfigReader& config, const BackboneShape& backbone) {
  Config c{QkvConfig::read(config, backbone, HeadShape::Shares{.heads = 16, .expand_k = 1, .expand_v = 1, .grouped = false}, true)};
  c.activation = config.word("qk_activation", "silu", {"silu", "relu", "elu", "identity"});
  c.sum_norm = config.word("qk_norm", "l2", {"l2", "sum"}) == "sum";
  c.beta = config.flag("use_beta", c.beta);
  c.beta_factor = config.flag("allow_neg_eigval", false) ? 2 : 1;
  c.gate = config.flag("use_gate", c.gate);
  config.only("use_output_norm", true);
  fla_bookkeeping(config);
  return factory_of<DeltaNet>(c);
}

}  // namespace cyfa
