#include "cyfa/mixers/raven.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 4, groups = 4, K = 0, V = 0, slots = 64, topk = 32;
  std::string feature_map;
  bool scalar_decay = true;    // decay_type: "Mamba2", or "GLA" for a gate of each slot's own
  bool mlp_router = false;     // router_type
  bool sigmoid_router = true;  // router_score
  bool rope = false;
  double rope_theta = 10000;
  bool output_gate = false;
  double normalizer = 8;
};

class Raven final : public StreamMixer {
 public:
  Raven(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size;
    const Init normal = Init::normal(c.backbone.initializer_range);
    add_streams(scope, c.backbone, {c.heads * c.K, c.groups * c.K, c.groups * c.V}, {});
    memory_.keys = keep_memory({c.heads, c.K, c.slots}, "k");
    memory_.values = keep_memory({c.heads, c.slots, c.V}, "v");
    if (c.rope) position_ = keep_position();
    if (c.scalar_decay) {
      decay_ = scope.matrix("a_proj.weight", {c.groups, D}, normal);
      A_log_ = scope.other("A_log", {c.groups}, Init::log_uniform(1e-4, 16));
      dt_bias_ = scope.other("dt_bias", {c.groups}, Init::time_step());
    } else {
      decay_ = scope.matrix("f_proj.weight", {c.groups * c.slots, D}, normal);
    }
    if (c.mlp_router) {
      router_hidden_ = scope.matrix("r_proj.0.weight", {D, D}, normal);
      router_bias_ = scope.other("r_proj.0.bias", {D}, Init::zeros());
      router_ = scope.matrix("r_proj.2.weight", {c.groups * c.slots, D}, normal);
    } else {
      router_ = scope.matrix("r_proj.weight", {c.groups * c.slots, D}, normal);
    }
    q_norm_ = scope.other("q_norm.weight", {c.K}, Init::ones());
    k_norm_ = scope.other("k_norm.weight", {c.K}, Init::ones());
    if (c.output_gate) {
      gate_ = scope.matrix("o_gate_proj.weight", {c.heads * c.V, D}, normal);
      o_norm_ = scope.other("o_norm.weight", {c.V}, Init::ones());
    } else {
      o_norm_ = scope.other("g_norm.weight", {c.heads * c.V}, Init::ones());
    }
    o_proj_ = scope.matrix("o_proj.weight", {D, c.heads * c.V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    const double eps = c_.backbone.norm_eps;
    std::vector<Call::Projection> others = {{decay_, {}},
                                            c_.mlp_router ? Call::Projection{router_hidden_, router_bias_} : Call::Projection{router_, {}}};
    if (c_.output_gate) others.push_back({gate_, {}});
    const std::vector<at::Tensor> y = project(call, {false, false, true}, others);
    const int64_t each = c_.heads / c_.groups;
    at::Tensor q = ops::rms_norm(feature_map(c_.feature_map, split_heads(y[0], c_.heads)), call[q_norm_], eps);
    at::Tensor k = ops::rms_norm(feature_map(c_.feature_map, split_heads(y[1], c_.groups)), call[k_norm_], eps);
    if (c_.rope) {
      const at::Tensor position = call.count_positions(position_);
      q = rotary(q, position, c_.rope_theta);
      k = rotary(k, position, c_.rope_theta);
    }
    const at::Tensor decay = c_.scalar_decay ? ops::decay_gate(y[3], call[dt_bias_], call[A_log_]).unsqueeze(-1)
                                             : log_sigmoid_gate(split_heads(y[3], c_.groups)) / c_.normalizer;
    const at::Tensor route = c_.mlp_router ? call.linear(exact_gelu(y[4]), router_) : y[4];
    const at::Tensor log_alpha = repeat_heads(decay * routed(split_heads(route, c_.groups)), each);
    const at::Tensor o = ops::silu(memory_.read(call, q, repeat_heads(k, each), repeat_heads(split_heads(y[2], c_.groups), each),
                                                one_minus_exp(log_alpha), log_alpha, 1));
    if (c_.output_gate) return call.linear(join_heads(gated_norm(o, call[o_norm_], eps, split_heads(y[5], c_.heads), false)), o_proj_);
    return call.linear(ops::rms_norm(join_heads(o), call[o_norm_], eps), o_proj_);
  }

  double flops_per_token() const override {
    return linear_attention_flops(c_.heads, c_.K, c_.slots) + linear_attention_flops(c_.heads, c_.slots, c_.V);
  }

 private:
  // Shares of the topk slots that the router likes best, 0 for the others: [.., G, M].
  at::Tensor routed(const at::Tensor& router) const {
    const at::Tensor wide = router.to(at::promote_types(router.scalar_type(), at::kFloat));
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
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", c.heads, 1, 1 << 20);
  c.groups = read_groups(config, "num_kv_heads", c.heads);
  c.K = head_width(config, "expand_k", 1, backbone.hidden_size, c.heads);
  c.V = head_width(config, "expand_v", 1, backbone.hidden_size, c.heads);
  c.slots = config.integer("num_slots", c.slots, 1, 1 << 20);
  c.topk = config.integer("topk", c.topk, 1, c.slots);
  c.feature_map = config.word("feature_map", "swish", {"swish", "relu"});
  c.scalar_decay = config.word("decay_type", "Mamba2", {"Mamba2", "GLA"}) == "Mamba2";
  c.mlp_router = config.word("router_type", "lin", {"lin", "mlp"}) == "mlp";
  c.sigmoid_router = config.word("router_score", "sigmoid", {"sigmoid", "softmax"}) == "sigmoid";
  c.rope = config.flag("use_rope", c.rope);
  if (c.rope && c.K % 2 != 0) config.fail("expand_k", "heads of an even width: rotary positions turn pairs");
  c.rope_theta = config.number("rope_theta", c.rope_theta, 1e-3, 1e12);
  c.output_gate = config.flag("use_output_gate", c.output_gate);
  c.normalizer = config.number("gate_logit_normalizer", c.normalizer, 1e-3, 1e6);
  config.only("bias_rmm", false);
  config.only("add_gumbel_noise", false);  // noise of the router while it trains
  fla_bookkeeping(config);
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<Raven>(c, scope); };
}

}  // namespace cyfa
