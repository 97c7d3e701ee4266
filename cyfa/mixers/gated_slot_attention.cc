#include "cyfa/mixers/gated_slot_attention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : QkvConfig {
  int64_t slots = 64;
  std::string feature_map = {};
  double normalizer = 8;
};

class GatedSlotAttention final : public QkvMixer {
 public:
  GatedSlotAttention(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, H = c.shape.heads, V = c.shape.V;
    const Init normal = c.normal();
    add_qkv(scope, c);
    memory_ = keep_slots(c.shape, c.slots);
    f_proj_ = scope.matrix("f_proj.weight", {c.shape.groups * c.slots, D}, normal);
    norm_ = scope.other("g_norm.weight", {H * V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    Qkv y = project(call, {c_.conv.on, c_.conv.on, c_.conv.on}, {f_proj_});
    const auto shared = [&](const at::Tensor& x) { return repeat_heads(split_heads(x, c_.shape.groups), c_.shape.each()); };
    const at::Tensor log_alpha = log_sigmoid_gate(shared(y[f_proj_])) / c_.normalizer;
    const at::Tensor o =
        memory_.read(call, feature_map(c_.feature_map, split_heads(y.q, c_.shape.heads)), feature_map(c_.feature_map, shared(y.k)),
                     ops::silu(shared(y.v)), one_minus_exp(log_alpha), log_alpha, 1);
    constexpr double kEps = 1e-5;  // the original implementation's fused norm ignores norm_eps
    return call.linear(ops::rms_norm(ops::silu(join_heads(o)), call[norm_], kEps), o_proj_);
  }

  double flops_per_token() const override {
    return linear_attention_flops(c_.shape.heads, c_.shape.K, c_.slots) + linear_attention_flops(c_.shape.heads, c_.slots, c_.shape.V);
  }

 private:
  Config c_;
  SlotMemory memory_;
  ParameterId f_proj_ = 0, norm_ = 0, o_proj_ = 0;
};

}  // namespace

MixerFactory read_gated_slot_attention(ConfigReader& config, const BackboneShape& backbone) {
  Config c{QkvConfig::read(config, backbone, HeadShape::Shares{.heads = 4, .expand_k = 1, .expand_v = 1}, false)};
  if (c.shape.heads * c.shape.V != backbone.hidden_size) config.fail("expand_v", "1: the origin's output norm is as wide as the model");
  c.slots = config.integer_or_null("num_slots", c.slots, 1, 1 << 20).value_or(c.shape.K);
  c.feature_map = config.word("feature_map", "swish", {"swish", "relu"});
  c.normalizer = config.number("gate_logit_normalizer", c.normalizer, 1e-3, 1e6);
  config.only("use_output_gate", false);
  config.only("use_norm", true);
  config.only("clamp_min", nullptr);
  config.only("clamp_max", nullptr);
  fla_bookkeeping(config);
  return factory_of<GatedSlotAttention>(c);
}

}  // namespace cyfa
