#include "cyfa/mixers/delta_net.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 16, K = 0, V = 0;
  ShortConvConfig conv;
  std::string activation;  // qk_activation
  bool sum_norm = false;   // qk_norm: "l2" or "sum"
  bool beta = true;        // use_beta
  double beta_factor = 1;  // 2 where allow_neg_eigval
  bool gate = false;       // use_gate
};

class DeltaNet final : public StreamMixer {
 public:
  DeltaNet(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size;
    const Init normal = Init::normal(c.backbone.initializer_range);
    add_streams(scope, c.backbone, {c.heads * c.K, c.heads * c.K, c.heads * c.V}, c.conv);
    memory_ = keep_memory({c.heads, c.K, c.V});
    if (c.beta) b_proj_ = scope.matrix("b_proj.weight", {c.heads, D}, normal);
    if (c.gate) g_proj_ = scope.matrix("g_proj.weight", {c.heads * c.V, D}, normal);
    norm_ = scope.other("o_norm.weight", {c.V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, c.heads * c.V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    std::vector<Call::Projection> others;
    if (c_.beta) others.push_back({b_proj_, {}});
    if (c_.gate) others.push_back({g_proj_, {}});
    const std::vector<at::Tensor> y = project(call, {false, false, true}, others);
    const at::Tensor q = normed(feature_map(c_.activation, split_heads(y[0], c_.heads)));
    const at::Tensor k = normed(feature_map(c_.activation, split_heads(y[1], c_.heads)));
    const at::Tensor beta = c_.beta ? ops::sigmoid_gate(y[3]) : at::ones_like(q.select(-1, 0));
    const at::Tensor o = call.delta_rule(memory_, q, k, split_heads(y[2], c_.heads), beta * c_.beta_factor);
    const at::Tensor out = c_.gate ? gated_norm(o, call[norm_], c_.backbone.norm_eps, split_heads(y.back(), c_.heads), false)
                                   : ops::rms_norm(o, call[norm_], c_.backbone.norm_eps);
    return call.linear(join_heads(out), o_proj_);
  }

  double flops_per_token() const override { return delta_rule_flops(c_.heads, c_.K, c_.V); }

 private:
  at::Tensor normed(const at::Tensor& x) const { return c_.sum_norm ? x / x.abs().sum(-1, true).clamp_min(1e-6) : l2_norm(x); }

  Config c_;
  ParameterId b_proj_ = 0, g_proj_ = 0, norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

}  // namespace

MixerFactory read_delta_net(ConfigReader& config, const BackboneShape& backbone) {
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", c.heads, 1, 1 << 20);
  c.K = head_width(config, "expand_k", 1, backbone.hidden_size, c.heads);
  c.V = head_width(config, "expand_v", 1, backbone.hidden_size, c.heads);
  c.conv = ShortConvConfig::read(config, true);
  c.activation = config.word("qk_activation", "silu", {"silu", "relu", "elu", "identity"});
  c.sum_norm = config.word("qk_norm", "l2", {"l2", "sum"}) == "sum";
  c.beta = config.flag("use_beta", c.beta);
  c.beta_factor = config.flag("allow_neg_eigval", false) ? 2 : 1;
  c.gate = config.flag("use_gate", c.gate);
  config.only("use_output_norm", true);
  fla_bookkeeping(config);
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<DeltaNet>(c, scope); };
}

}  // namespace cyfa
