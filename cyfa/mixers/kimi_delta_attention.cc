#include "cyfa/mixers/kimi_delta_attention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 16, value_heads = 16, K = 128, V = 128;
  ShortConvConfig conv;
  double beta_factor = 1;  // 2 where allow_neg_eigval
};

class KimiDeltaAttention final : public StreamMixer {
 public:
  KimiDeltaAttention(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, H = c.value_heads;
    const Init normal = Init::normal(c.backbone.initializer_range);
    add_streams(scope, c.backbone, {c.heads * c.K, c.heads * c.K, H * c.V}, c.conv);
    memory_ = keep_memory({H, c.K, c.V});
    forget_down_ = scope.matrix("f_proj.0.weight", {c.V, D}, normal);
    forget_up_ = scope.matrix("f_proj.1.weight", {H * c.K, c.V}, normal);
    b_proj_ = scope.matrix("b_proj.weight", {H, D}, normal);
    A_log_ = scope.other("A_log", {H}, Init::log_uniform(1, 16));
    dt_bias_ = scope.other("dt_bias", {H * c.K}, Init::time_step());
    gate_down_ = scope.matrix("g_proj.0.weight", {c.V, D}, normal);
    gate_up_ = scope.matrix("g_proj.1.weight", {H * c.V, c.V}, normal);
    gate_bias_ = scope.other("g_proj.1.bias", {H * c.V}, Init::zeros());
    norm_ = scope.other("o_norm.weight", {c.V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * c.V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    const int64_t H = c_.value_heads, each = H / c_.heads;
    const std::vector<at::Tensor> y = project(call, {true, true, true}, {{forget_down_, {}}, {b_proj_, {}}, {gate_down_, {}}});
    const at::Tensor q = repeat_heads(l2_norm(split_heads(y[0], c_.heads)), each),
                     k = repeat_heads(l2_norm(split_heads(y[1], c_.heads)), each);
    const at::Tensor log_alpha = ops::decay_gate(call.linear(y[3], forget_up_), call[dt_bias_], call[A_log_].repeat_interleave(c_.K));
    const at::Tensor o =
        call.row_gated_delta_rule(memory_, q, k, split_heads(y[2], H), ops::sigmoid_gate(y[4]) * c_.beta_factor, split_heads(log_alpha, H));
    const at::Tensor gate = split_heads(call.linear(y[5], gate_up_, gate_bias_), H);
    return call.linear(join_heads(gated_norm(o, call[norm_], c_.backbone.norm_eps, gate, true)), o_proj_);
  }

  double flops_per_token() const override { return delta_rule_flops(c_.value_heads, c_.K, c_.V); }

 private:
  Config c_;
  ParameterId forget_down_ = 0, forget_up_ = 0, b_proj_ = 0, A_log_ = 0, dt_bias_ = 0, gate_down_ = 0, gate_up_ = 0, gate_bias_ = 0,
              norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

}  // namespace

MixerFactory read_kimi_delta_attention(ConfigReader& config, const BackboneShape& backbone) {
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", c.heads, 1, 1 << 20);
  c.value_heads = read_value_heads(config, c.heads);
  c.K = config.integer("head_dim", c.K, 1, 1 << 20);
  c.V = head_width(config, "expand_v", 1, c.K, 1);
  c.conv = ShortConvConfig::read(config, true);
  c.beta_factor = config.flag("allow_neg_eigval", false) ? 2 : 1;
  config.only("safe_gate", false);
  config.only("lower_bound", nullptr);
  fla_bookkeeping(config);
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<KimiDeltaAttention>(c, scope); };
}

}  // namespace cyfa
