#include "cyfa/mixers/kimi_delta_attention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

class KimiDeltaAttention final : public QkvMixer {
 public:
  KimiDeltaAttention(const DeltaConfig& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, H = c.value_heads, K = c.shape.K, V = c.shape.V;
    const Init normal = c.normal();
    add_qkv(scope, c);
    memory_ = keep_memory({H, K, V});
    forget_first_ = scope.matrix("f_proj.0.weight", {V, D}, normal);
    forget_second_ = scope.matrix("f_proj.1.weight", {H * K, V}, normal);
    b_proj_ = scope.matrix("b_proj.weight", {H, D}, normal);
    A_log_ = scope.other("A_log", {H}, Init::log_uniform(1, 16));
    dt_bias_ = scope.other("dt_bias", {H * K}, Init::time_step());
    gate_first_ = scope.matrix("g_proj.0.weight", {V, D}, normal);
    gate_second_ = scope.matrix("g_proj.1.weight", {H * V, V}, normal);
    gate_bias_ = scope.other("g_proj.1.bias", {H * V}, Init::zeros());
    norm_ = scope.other("o_norm.weight", {V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    const int64_t H = c_.value_heads, each = c_.each();
    Qkv y = project(call, {true, true, true}, {forget_first_, b_proj_, gate_first_});
    const at::Tensor q = repeat_heads(l2_norm(split_heads(y.q, c_.shape.heads)), each),
                     k = repeat_heads(l2_norm(split_heads(y.k, c_.shape.heads)), each);
    const at::Tensor log_alpha =
        ops::decay_gate(call.linear(y[forget_first_], forget_second_), call[dt_bias_], call[A_log_].repeat_interleave(c_.shape.K));
    const at::Tensor o = call.recurrence("row_gated_delta_rule", memory_,
                                         {.q = q,
                                          .k = k,
                                          .v = split_heads(y.v, H),
                                          .log_alpha = split_heads(log_alpha, H),
                                          .beta = ops::sigmoid_gate(y[b_proj_]) * c_.beta_factor});
    const at::Tensor gate = split_heads(call.linear(y[gate_first_], gate_second_, gate_bias_), H);
    return call.linear(join_heads(gated_norm(o, call[norm_], c_.backbone.norm_eps, gate, true)), o_proj_);
  }

  double flops_per_token() const override { return delta_rule_flops(c_.value_heads, c_.shape.K, c_.shape.V); }

 private:
  DeltaConfig c_;
  ParameterId forget_first_ = 0, forget_second_ = 0, b_proj_ = 0, A_log_ = 0, dt_bias_ = 0, gate_first_ = 0, gate_second_ = 0,
              gate_bias_ = 0, norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

}  // namespace

MixerFactory read_kimi_delta_attention(ConfigReader& config, const BackboneShape& backbone) {
  const DeltaConfig c = DeltaConfig::read(config, backbone, {.heads = 16, .head_dim = 128, .expand_k = 0, .expand_v = 1});
  config.only("safe_gate", false);
  config.only("lower_bound", nullptr);
  fla_bookkeeping(config);
  return factory_of<KimiDeltaAttention>(c);
}

}  // namespace cyfa
