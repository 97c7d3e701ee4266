#include "cyfa/mixers/gated_delta_net.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 6, value_heads = 6, K = 256, V = 512;
  ShortConvConfig conv;
  double beta_factor = 1;  // 2 where allow_neg_eigval
  bool gate = true, sigmoid = false;
};

class GatedDeltaNet final : public StreamMixer {
 public:
  GatedDeltaNet(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, H = c.value_heads;
    const Init normal = Init::normal(c.backbone.initializer_range);
    add_streams(scope, c.backbone, {c.heads * c.K, c.heads * c.K, H * c.V}, c.conv);
    memory_ = keep_memory({H, c.K, c.V});
    a_proj_ = scope.matrix("a_proj.weight", {H, D}, normal);
    b_proj_ = scope.matrix("b_proj.weight", {H, D}, normal);
    A_log_ = scope.other("A_log", {H}, Init::log_uniform(0, 16));
    dt_bias_ = scope.other("dt_bias", {H}, Init::time_step());
    if (c.gate) g_proj_ = scope.matrix("g_proj.weight", {H * c.V, D}, normal);
    norm_ = scope.other("o_norm.weight", {c.V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * c.V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    std::vector<Call::Projection> others = {{a_proj_, {}}, {b_proj_, {}}};
    if (c_.gate) others.push_back({g_proj_, {}});
    const std::vector<at::Tensor> y = project(call, {true, true, true}, others);
    const int64_t each = c_.value_heads / c_.heads;
    const at::Tensor q = repeat_heads(l2_norm(split_heads(y[0], c_.heads)), each),
                     k = repeat_heads(l2_norm(split_heads(y[1], c_.heads)), each);
    const at::Tensor o =
        call.scalar_gated_delta_rule(memory_, q, k, split_heads(y[2], c_.value_heads), ops::sigmoid_gate(y[4]) * c_.beta_factor,
                                     ops::decay_gate(y[3], call[dt_bias_], call[A_log_]));
    const at::Tensor out = c_.gate ? gated_norm(o, call[norm_], c_.backbone.norm_eps, split_heads(y[5], c_.value_heads), c_.sigmoid)
                                   : ops::rms_norm(o, call[norm_], c_.backbone.norm_eps);
    return call.linear(join_heads(out), o_proj_);
  }

  double flops_per_token() const override { return delta_rule_flops(c_.value_heads, c_.K, c_.V); }

 private:
  Config c_;
  ParameterId a_proj_ = 0, b_proj_ = 0, A_log_ = 0, dt_bias_ = 0, g_proj_ = 0, norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

}  // namespace

MixerFactory read_gated_delta_net(ConfigReader& config, const BackboneShape& backbone) {
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", c.heads, 1, 1 << 20);
  c.value_heads = read_value_heads(config, c.heads);
  c.K = config.integer("head_dim", c.K, 1, 1 << 20);
  c.V = head_width(config, "expand_v", 2, c.K, 1);
  c.conv = ShortConvConfig::read(config, true);
  c.beta_factor = config.flag("allow_neg_eigval", false) ? 2 : 1;
  c.gate = config.flag("use_gate", c.gate);
  c.sigmoid = config.word("output_gate_activation", "swish", {"swish", "silu", "sigmoid"}) == "sigmoid";
  fla_bookkeeping(config);
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<GatedDeltaNet>(c, scope); };
}

}  // namespace cyfa
