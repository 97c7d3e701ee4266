#include "cyfa/mixers/raven.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : QkvConfig {
  int64_t slots = 64, topk = 32;
  std::string feature_map = {};
  bool scalar_decay = true;    // decay_type: "Mamba2", or "GLA" for one gate per slot
  bool mlp_router = false;     // router_type
  bool sigmoid_router = true;  // router_score
  bool rope = false;
  double rope_theta = 10000;
  bool output_gate = false;
  double normalizer = 8;
  bool noise = true;  // add_gumbel_noise: training adds Gumbel noise to the router's logits
};

class Raven final : public QkvMixer {
 public:
  Raven(const Config& c, const ParameterScope& scope) : c_(c) {
    const auto [H, G, K, V] = c.shape;
    const int64_t D = c.backbone.hidden_size;
    const Init normal = c.normal();
    add_qkv(scope, c);
    memory_ = keep_slots(c.shape, c.slots);
    if (c.rope) position_ = keep_position();
    if (c.scalar_decay) {
      decay_ = scope.matrix("a_proj.weight", {G, D}, normal);
      A_log_ = scope.other("A_log", {G}, Init::log_uniform(1e-4, 16));
      dt_bias_ = scope.other("dt_bias", {G}, Init::time_step());
    } else {
      decay_ = scope.matrix("f_proj.weight", {G * c.slots, D}, normal);
    }
    if (c.mlp_router) {
      router_hidden_ = scope.matrix("r_proj.0.weight", {D, D}, normal);
      router_bias_ = scope.other("r_proj.0.bias", {D}, Init::zeros());
      router_ = scope.matrix("r_proj.2.weight", {G * c.slots, D}, normal);
    } else {
      router_ = scope.matrix("r_proj.weight", {G * c.slots, D}, normal);
    }
    q_norm_ = scope.other("q_norm.weight", {K}, Init::ones());
    k_norm_ = scope.other("k_norm.weight", {K}, Init::ones());
    if (c.output_gate) {
      gate_ = scope.matrix("o_gate_proj.weight", {H * V, D}, normal);
      o_norm_ = scope.other("o_norm.weight", {V}, Init::ones());
    } else {
      o_norm_ = scope.other("g_norm.weight", {H * V}, Init::ones());
    }
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    const double eps = c_.backbone.norm_eps;
    const int64_t H = c_.shape.heads, G = c_.shape.groups, each = c_.shape.each();
    std::vector<Call::Projection> others = {decay_};
    if (c_.mlp_router) {
      others.emplace_back(router_hidden_, router_bias_);
    } else {
      others.emplace_back(router_);
    }
    if (c_.output_gate) others.emplace_back(gate_);
    Qkv y = project(call, {false, false, true}, others);
    at::Tensor q = ops::rms_norm(feature_map(c_.feature_map, split_heads(y.q, H)), call[q_norm_], eps);
    at::Tensor k = ops::rms_norm(feature_map(c_.feature_map, split_heads(y.k, G)), call[k_norm_], eps);
    if (c_.rope) {
      const at::Tensor position = call.count_positions(position_);
      q = rotary(q, position, c_.rope_theta);
      k = rotary(k, position, c_.rope_theta);
    }
    const at::Tensor decay = c_.scalar_decay ? ops::decay_gate(y[decay_], call[dt_bias_], call[A_log_]).unsqueeze(-1)
                                             : log_sigmoid_gate(split_heads(y[decay_], G)) / c_.normalizer;
    const at::Tensor route = c_.mlp_router ? call.linear(exact_gelu(y[router_hidden_]), router_) : y[router_];
    const at::Tensor log_alpha = repeat_heads(decay * routed(call, split_heads(route, G)), each);
    const at::Tensor o = ops::silu(
        memory_.read(call, q, repeat_heads(k, each), repeat_heads(split_heads(y.v, G), each), one_minus_exp(log_alpha), log_alpha, 1));
    if (c_.output_gate) return call.linear(join_heads(gated_norm(o, call[o_norm_], eps, split_heads(y[gate_], H), false)), o_proj_);
    return call.linear(ops::rms_norm(join_heads(o), call[o_norm_], eps), o_proj_);
  }

  bool draws_noise() const override { return c_.noise; }

  double flops_per_token() const override {
    return linear_attention_flops(c_.shape.heads, c_.shape.K, c_.slots) + linear_attention_flops(c_.shape.heads, c_.slots, c_.shape.V);
  }

 private:
  // Routing weights of the top-k slots, 0 for the others: [.., G, M].
  at::Tensor routed(const Call& call, const at::Tensor& router) const {
    at::Tensor wide = router.to(at::promote_types(router.scalar_type(), at::kFloat));
    if (const std::optional<uint64_t> seed = call.weights().noise(); seed && c_.noise) wide = wide + gumbel_noise(wide, *seed);
    const at::Tensor scores = c_.sigmoid_router ? ops::sigmoid_gate(wide) : at::softmax(wide, -1);
    const at::Tensor chosen = std::get<1>(scores.topk(c_.topk, -1));
    at::Tensor share = scores.gather(-1, chosen);
    if (c_.sigmoid_router) share = share / (share.sum(-1, true) + 1e-9);
    return at::zeros_like(scores).scatter(-1, chosen, share);
  }

  Config c_;
  SlotMemory memory_;
  ParameterId decay_ = 0, A_log_ = 0, dt_bias_ = 0, router_hidden_ = 0, router_bias_ = 0, router_ = 0, q_norm_ = 0, k_norm_ = 0, gate_ = 0,
              o_norm_ = 0, o_proj_ = 0;
  size_t position_ = 0;
};

}  // namespace

MixerFactory read_raven(ConfigReader& config, const BackboneShape& backbone) {
  Config c{{backbone, HeadShape::of_model_width(config, backbone, {.heads = 4, .expand_k = 1, .expand_v = 1}), {}}};
  const std::optional<int64_t> slots = config.integer_or_null("num_slots", c.slots, 1, 1 << 20);
  c.slots = slots.value_or(c.shape.K);
  c.topk = config.integer("topk", c.topk, 1, 1 << 20);
  if (!slots) c.topk = std::min(c.topk, c.slots);
  if (c.topk > c.slots) config.fail("topk", "at most num_slots = " + std::to_string(c.slots));
  c.feature_map = config.word("feature_map", "swish", {"swish", "relu"});
  c.scalar_decay = config.word("decay_type", "Mamba2", {"Mamba2", "GLA"}) == "Mamba2";
  c.mlp_router = config.word("router_type", "lin", {"lin", "mlp"}) == "mlp";
  c.sigmoid_router = config.word("router_score", "sigmoid", {"sigmoid", "softmax"}) == "sigmoid";
  c.rope = config.flag("use_rope", c.rope);
  if (c.rope && c.shape.K % 2 != 0) config.fail("expand_k", "heads of an even width: rotary positions turn pairs");
  c.rope_theta = config.number("rope_theta", c.rope_theta, 1e-3, 1e12);
  c.output_gate = config.flag("use_output_gate", c.output_gate);
  c.normalizer = config.number("gate_logit_normalizer", c.normalizer, 1e-3, 1e6);
  config.only("bias_rmm", false);
  c.noise = config.flag("add_gumbel_noise", c.noise);
  fla_bookkeeping(config);
  return factory_of<Raven>(c);
}

}  // namespace cyfa
