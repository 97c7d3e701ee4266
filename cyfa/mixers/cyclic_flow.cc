#include "cyfa/mixers/cyclic_flow.h"

#include <algorithm>
#include <cmath>

namespace cyfa {
namespace {

class CyclicFlowMixer final : public QkvMixer {
 public:
  CyclicFlowMixer(const CyclicFlowConfig& config, const ParameterScope& scope) : c_(config) {
    const auto& [H, G, K, V] = c_.shape;
    const int64_t D = c_.backbone.hidden_size, M = c_.slots;
    const Init normal = c_.normal();
    s_.config = c_;
    s_.keys = keep({.name = "k", .shape = {H, K, M}, .narrow = true});
    s_.values = keep({.name = "v", .shape = {H, M, V}, .narrow = true});
    s_.clock = keep({.name = "clock", .shape = {H}, .dtype = at::kDouble, .memory = false});
    add_qkv(scope, c_);
    s_.qkv = qkv();
    if (c_.qk_norm) {
      s_.q_norm = scope.other("q_norm.weight", {K}, Init::ones());
      s_.k_norm = scope.other("k_norm.weight", {K}, Init::ones());
    }
    if (c_.forget_gate) {
      s_.a_proj = scope.matrix("a_proj.weight", {H, D}, normal);
      s_.dt_bias = scope.other("dt_bias", {H}, Init::time_step());
      s_.A_log = scope.other("A_log", {H}, Init::log_uniform(0, 16));
    }
    if (!c_.constant_clock) s_.d_proj = scope.matrix("d_proj.weight", {H, D}, normal);
    if (c_.rho == 0) s_.d_bias = scope.other("d_proj.bias", {H}, Init::zeros());
    s_.b_proj = scope.matrix("b_proj.weight", {H, D}, normal);
    s_.b_bias = scope.other("b_proj.bias", {H}, Init::zeros());
    if (c_.learned_readout) s_.readout = scope.other("readout", {H, M - 1, M - 1}, Init::identity(), true);
    s_.gate_first = scope.matrix("g_proj.0.weight", {V, D}, normal);
    s_.gate_second = scope.matrix("g_proj.1.weight", {H * V, V}, normal);
    s_.gate_bias = scope.other("g_proj.1.bias", {H * V}, Init::zeros());
    s_.o_norm = scope.other("o_norm.weight", {V}, Init::ones());
    s_.o_proj = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  const CyclicFlowSpec& spec() const { return s_; }

  at::Tensor mix(Call& call) const override {
    Projected y = projected(call);
    const at::Tensor o = flow(call, y);
    const at::Tensor gate = call.linear(y.qkv[s_.gate_first], s_.gate_second, s_.gate_bias);
    return call.linear(ops::gated_rms_norm(o, call[s_.o_norm], s_.output_eps(), gate.view(o.sizes())).flatten(-2), s_.o_proj);
  }

  // Statistics of clock increments and gates over all tokens; slot occupancy and read entropy after the last token.
  Figures health(Call& call) const override {
    if (call.x().numel() == 0) return {};
    Projected y = projected(call);
    flow(call, y);
    const at::Tensor delta = y.in.delta.to(at::kDouble), beta = y.in.beta.to(at::kDouble), alpha = y.in.log_alpha.to(at::kDouble).exp();
    // Participation ratio: 1 if all slots have the same energy, 1 / m if one slot has all of it.
    const at::Tensor energy = view(call.final_state())->energy;
    const at::Tensor spread = energy.sum(-1).square() / (energy.square().sum(-1).clamp_min(1e-300) * static_cast<double>(energy.size(-1)));
    const auto number = [](const at::Tensor& value) { return value.item<double>(); };
    using Over = Figure::Over;
    return {{"clock_mean", number(delta.mean())},
            {"clock_spread", number(delta.std(false))},
            {"clock_least", number(delta.min()), Over::kLeast},
            {"clock_most", number(delta.max()), Over::kMost},
            {"alpha_least", number(alpha.min()), Over::kLeast},
            {"alpha_mean", number(alpha.mean())},
            {"alpha_most", number(alpha.max()), Over::kMost},
            {"beta_mean", number(beta.mean())},
            {"slot_occupancy", number(spread.mean())},
            {"read_entropy", read_entropy(y.in, call.final_state())}};
  }

  std::optional<MemoryView> view(const MixerState& state) const override {
    return MemoryView{state[s_.clock], ops::cyclic_flow_slots(state[s_.values].to(at::kDouble), state[s_.clock]).square().sum(-1)};
  }

  ops::CyclicFlowReads reads(Call& call) const {
    ops::CyclicFlowOptions options;
    options.norm_eps = c_.backbone.norm_eps;
    return ops::cyclic_flow_reads(projected(call).in, options);
  }

  // Sum over the stages of docs/operator.md, with chunks of 64 tokens.
  double flops_per_token() const override {
    const auto C = 64.0, K = static_cast<double>(c_.shape.K), V = static_cast<double>(c_.shape.V), M = static_cast<double>(c_.slots);
    return 2.0 * static_cast<double>(c_.shape.heads) * (C * K + C * M + K * M + 2 * M * M + C * M + C * V + M * V + M * (K + V));
  }

 private:
  // The operator's inputs and the remaining projections.
  struct Projected {
    Qkv qkv;
    ops::CyclicFlowInputs in;
  };

  // In a forward, projections are computed on first use, so that the output gate occupies no memory while the operator runs.
  Projected projected(Call& call) const {
    std::vector<Call::Projection> others = {s_.gate_first, Call::Projection::of_gate(s_.b_proj, s_.b_bias)};
    if (!c_.constant_clock)
      others.push_back(Call::Projection::of_gate(s_.d_proj, s_.d_bias, call.stops_clock_gradient(c_.clock_stop_gradient)));
    if (c_.forget_gate) others.emplace_back(s_.a_proj);
    Projected y{project(call, c_.silu, others, Call::When::kOnUse), {}};
    y.in.q = split_heads(y.qkv.q, c_.shape.heads);
    y.in.k = split_heads(y.qkv.k, c_.shape.heads);
    y.in.v = split_heads(y.qkv.v, c_.shape.heads);
    const at::Tensor d = c_.constant_clock ? constant_clock(call).expand(y.in.q.sizes().slice(0, y.in.q.dim() - 1)) : y.qkv[s_.d_proj];
    y.in.beta = ops::sigmoid_gate(y.qkv[s_.b_proj]);
    y.in.delta = call.clock(ops::sigmoid_gate(d));
    y.in.log_alpha = c_.forget_gate ? ops::decay_gate(y.qkv[s_.a_proj], call[s_.dt_bias], call[s_.A_log])
                                    : at::zeros_like(y.in.beta, y.in.beta.options().dtype(at::kFloat));
    y.in.readout = s_.readout_matrices(call.weights(), call.x().device());
    if (c_.qk_norm) {
      y.in.q_norm_weight = call[s_.q_norm];
      y.in.k_norm_weight = call[s_.k_norm];
    }
    return y;
  }

  at::Tensor flow(Call& call, const Projected& y) const {
    ops::CyclicFlowOptions options;
    options.norm_eps = c_.backbone.norm_eps;
    return call.cyclic_flow(s_.keys, y.in, options, s_.o_norm);
  }

  // Logits [H] of the increments of a "constant" or "fixed" clock.
  at::Tensor constant_clock(Call& call) const {
    if (c_.rho == 0) return call[s_.d_bias];
    const double rate = 1 / c_.rho;
    return at::full({c_.shape.heads}, std::log(rate / (1 - rate)), call[s_.o_norm].options());
  }

  // Entropy of the last token's read weights over the slots, relative to its maximum.
  double read_entropy(const ops::CyclicFlowInputs& in, const MixerState& state) const {
    at::Tensor q = in.q.select(1, in.q.size(1) - 1).to(at::kDouble);
    if (c_.qk_norm) q = q * at::rsqrt(q.square().mean(-1, true) + c_.backbone.norm_eps) * in.q_norm_weight->to(at::kDouble);
    const at::Tensor keys = ops::cyclic_flow_slots(state[s_.keys].transpose(2, 3).to(at::kDouble), state[s_.clock]);  // [B, H, m, K]
    const at::Tensor scores = at::matmul(keys, q.unsqueeze(-1)).squeeze(-1) / std::sqrt(static_cast<double>(c_.shape.K));
    const at::Tensor p = at::softmax(at::einsum("hij,bhj->bhi", {in.readout.to(at::kDouble), scores}), -1);
    const auto most = std::log(static_cast<double>(std::max<int64_t>(2, c_.slots - 1)));
    return (-(p * p.clamp_min(1e-300).log()).sum(-1).mean() / most).item<double>();
  }

  CyclicFlowConfig c_;
  CyclicFlowSpec s_;
};

// Reads a list of distinct streams: ["q", "k"]. None if the key is absent.
std::array<bool, 3> read_streams(ConfigReader& config, const std::string& key) {
  std::array<bool, 3> chosen = {};
  const Json* list = config.list(key);
  if (list == nullptr) {
    config.note(key, Json::array());
    return chosen;
  }
  const std::array<const char*, 3> names = {"q", "k", "v"};
  for (const Json& name : *list) {
    const auto found = std::find_if(names.begin(), names.end(), [&](const char* one) { return name == one; });
    const auto i = static_cast<size_t>(found - names.begin());
    if (i == names.size() || chosen[i])
      config.fail(key, "a list of the streams that take SiLU, each of \"q\", \"k\" and \"v\" at most once");
    chosen[i] = true;
  }
  return chosen;
}

}  // namespace

double CyclicFlowSpec::output_eps() const {
  const auto m = static_cast<double>(config.slots - 1);
  return config.backbone.norm_eps / (m * m);
}

at::Tensor CyclicFlowSpec::readout_matrices(const Weights& w, at::Device device) const {
  if (config.learned_readout) return w[readout];
  return at::eye(config.slots - 1, at::TensorOptions(at::kFloat).device(device)).expand({config.shape.heads, -1, -1});
}

const CyclicFlowSpec* cyclic_flow_spec(const Mixer& mixer) {
  const auto* flow = dynamic_cast<const CyclicFlowMixer*>(&mixer);
  return flow == nullptr ? nullptr : &flow->spec();
}

std::optional<ops::CyclicFlowReads> cyclic_flow_reads(const Mixer& mixer, Call& call) {
  const auto* flow = dynamic_cast<const CyclicFlowMixer*>(&mixer);
  if (flow == nullptr) return std::nullopt;
  const at::NoGradGuard no_grad;
  return flow->reads(call);
}

MixerFactory read_cyclic_flow(ConfigReader& config, const BackboneShape& backbone) {
  const HeadShape::Widths widths = {.heads = 8, .head_dim = 256, .expand_k = 1, .expand_v = 1, .truncated = true};
  CyclicFlowConfig c{QkvConfig::read(config, backbone, widths, true)};
  c.slots = config.integer("num_slots", c.slots, 2, 1 << 13);
  if (c.slots % 2 != 0) config.fail("num_slots", "an even number of stored slots (m + 1)");
  c.silu = read_streams(config, "silu_streams");
  c.qk_norm = config.flag("use_qk_norm", c.qk_norm);
  c.forget_gate = config.flag("use_forget_gate", c.forget_gate);
  const std::string clock = config.word("clock", "token", {"token", "constant", "fixed"});
  c.constant_clock = clock != "token";
  const std::optional<double> rho = config.number_or_null("rho", 1, 1e6);
  if (rho.has_value() != (clock == "fixed")) config.fail("rho", "tokens a slot where clock is \"fixed\", and only there");
  c.rho = rho.value_or(0);
  c.clock_stop_gradient = config.flag("clock_stop_gradient", c.clock_stop_gradient);
  c.learned_readout = config.word("readout", "learned", {"learned", "identity"}) == "learned";
  config.bookkeeping({"attn_mode", "checkpoint_level"});
  return factory_of<CyclicFlowMixer>(c);
}

}  // namespace cyfa
