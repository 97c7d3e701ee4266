#include "cyfa/mixers/gated_slot_attention.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 4, groups = 4, K = 0, V = 0, slots = 64;
  std::string feature_map;
  ShortConvConfig conv;
  double normalizer = 8;
};

class GatedSlotAttention final : public StreamMixer {
 public:
  GatedSlotAttention(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size;
    const Init normal = Init::normal(c.backbone.initializer_range);
    add_streams(scope, c.backbone, {c.heads * c.K, c.groups * c.K, c.groups * c.V}, c.conv);
    memory_.keys = keep_memory({c.heads, c.K, c.slots}, "k");
    memory_.values = keep_memory({c.heads, c.slots, c.V}, "v");
    f_proj_ = scope.matrix("f_proj.weight", {c.groups * c.slots, D}, normal);
    norm_ = scope.other("g_norm.weight", {c.heads * c.V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, c.heads * c.V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    const std::vector<at::Tensor> y = project(call, {c_.conv.on, c_.conv.on, c_.conv.on}, {{f_proj_, {}}});
    const int64_t each = c_.heads / c_.groups;
    const auto shared = [&](const at::Tensor& x) { return repeat_heads(split_heads(x, c_.groups), each); };
    const at::Tensor log_alpha = log_sigmoid_gate(shared(y[3])) / c_.normalizer;
    const at::Tensor o =
        memory_.read(call, feature_map(c_.feature_map, split_heads(y[0], c_.heads)), feature_map(c_.feature_map, shared(y[1])),
                     ops::silu(shared(y[2])), one_minus_exp(log_alpha), log_alpha, 1);
    constexpr double kEps = 1e-5;  // of the origin's fused norm, whatever norm_eps says
    return call.linear(ops::rms_norm(ops::silu(join_heads(o)), call[norm_], kEps), o_proj_);
  }

  double flops_per_token() const override {
    return linear_attention_flops(c_.heads, c_.K, c_.slots) + linear_attention_flops(c_.heads, c_.slots, c_.V);
  }

 private:
  Config c_;
  SlotMemory memory_;
  ParameterId f_proj_ = 0, norm_ = 0, o_proj_ = 0;
};

}  // namespace

MixerFactory read_gated_slot_attention(ConfigReader& config, const BackboneShape& backbone) {
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", c.heads, 1, 1 << 20);
  c.groups = read_groups(config, "num_kv_heads", c.heads);
  c.K = head_width(config, "expand_k", 1, backbone.hidden_size, c.heads);
  c.V = head_width(config, "expand_v", 1, backbone.hidden_size, c.heads);
  if (c.heads * c.V != backbone.hidden_size) config.fail("expand_v", "1: the origin's output norm is as wide as the model");
  c.slots = config.integer("num_slots", c.K, 1, 1 << 20);
  c.feature_map = config.word("feature_map", "swish", {"swish", "relu"});
  c.conv = ShortConvConfig::read(config, false);
  c.normalizer = config.number("gate_logit_normalizer", c.normalizer, 1e-3, 1e6);
  config.only("use_output_gate", false);
  config.only("use_norm", true);
  config.only("clamp_min", nullptr);
  config.only("clamp_max", nullptr);
  fla_bookkeeping(config);
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<GatedSlotAttention>(c, scope); };
}

}  // namespace cyfa
