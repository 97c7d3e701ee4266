#include "cyfa/mixers/gated_delta_net.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : DeltaConfig {
  bool gate = true, sigmoid = false;
};

class GatedDeltaNet final : public QkvMixer {
 public:
  GatedDeltaNet(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, H = c.value_heads, K = c.shape.K, V = c.shape.V;
    const Init normal = c.normal();
    add_qkv(scope, c);
    memory_ = keep_memory({H, K, V});
    a_proj_ = scope.matrix("a_proj.weight", {H, D}, normal);
    b_proj_ = scope.matrix("b_proj.weight", {H, D}, normal);
    A_log_ = scope.other("A_log", {H}, Init::log_uniform(0, 16));
    dt_bias_ = scope.other("dt_bias", {H}, Init::time_step());
    if (c.gate) g_proj_ = scope.matrix("g_proj.weight", {H * V, D}, normal);
    norm_ = scope.other("o_norm.weight", {V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    std::vector<Call::Projection> others = {a_proj_, b_proj_};
    if (c_.gate) others.emplace_back(g_proj_);
    Qkv y = project(call, {true, true, true}, others);
    const int64_t each = c_.each();
    const at::Tensor q = repeat_heads(l2_norm(split_heads(y.q, c_.shape.heads)), each),
                     k = repeat_heads(l2_norm(split_heads(y.k, c_.shape.heads)), each);
    const at::Tensor o = call.recurrence("scalar_gated_delta_rule", memory_,
                                         {.q = q,
                                          .k = k,
                                          .v = split_heads(y.v, c_.value_heads),
                                          .log_alpha = ops::decay_gate(y[a_proj_], call[dt_bias_], call[A_log_]),
                                          .beta = ops::sigmoid_gate(y[b_proj_]) * c_.beta_factor});
    const at::Tensor out = c_.gate ? gated_norm(o, call[norm_], c_.backbone.norm_eps, split_heads(y[g_proj_], c_.value_heads), c_.sigmoid)
                                   : ops::rms_norm(o, call[norm_], c_.backbone.norm_eps);
    return call.linear(join_heads(out), o_proj_);
  }

  double flops_per_token() const override { return delta_rule_flops(c_.value_heads, c_.shape.K, c_.shape.V); }

 private:
  Config c_;
  ParameterId a_proj_ = 0, b_proj_ = 0, A_log_ = 0, dt_bias_ = 0, g_proj_ = 0, norm_ = 0, o_proj_ = 0;
  size_t memory_ = 0;
};

}  // namespace

MixerFactory read_gated_delta_net(ConfigReader& config, const BackboneShape& backbone) {
  Config c{DeltaConfig::read(config, backbone, {.heads = 6, .head_dim = 256, .expand_k = 0, .expand_v = 2})};
  c.gate = config.flag("use_gate", c.gate);
  c.sigmoid = config.word("output_gate_activation", "swish", {"swish", "silu", "sigmoid"}) == "sigmoid";
  fla_bookkeeping(config);
  return factory_of<GatedDeltaNet>(c);
}

}  // namespace cyfa
