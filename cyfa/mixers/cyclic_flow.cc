#include "cyfa/mixers/cyclic_flow.h"

#include <algorithm>
#include <cmath>

#include "cyfa/engine/sm90/decode_step.h"
#include "cyfa/engine/sm90/packed.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/dense/dense.h"
#include "cyfa/ops/dense/short_conv.h"

namespace cyfa {
namespace {

// A projection and the convolution behind it.
struct Stream {
  ParameterId projection = 0, conv = 0, conv_bias = 0;
  int64_t width = 0;
};

class CyclicFlowMixer final : public Mixer {
 public:
  CyclicFlowMixer(const CyclicFlowConfig& config, const ParameterScope& scope);

  const std::vector<StateSpec>& state() const override { return state_; }
  MixerOutput forward(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens,
                      const MixerState* initial) const override;
  // The readout's table; on a GPU in bf16 also the weights as step_packed takes them (flow_weights).
  std::vector<at::Tensor> derive(const Weights& w) const override;
  at::Tensor step(const Weights& w, const std::vector<at::Tensor>& derived, const at::Tensor& x, MixerState& state) const override;
  bool add_step(const Weights& w, const std::vector<at::Tensor>& derived, const at::Tensor& x, const at::Tensor& norm_weight, double eps,
                MixerState& state, const at::Tensor& ahead) const override {
    return derived.size() > 1 && ops::add_flow_step(x, {norm_weight, eps}, flow_step(w, derived, state), ahead);
  }
  bool add_rows(const Weights& w, const std::vector<at::Tensor>& derived, ops::StepRows& rows, const ops::StepNorm& next,
                MixerState& state) const override {
    return derived.size() > 1 && ops::add_flow_rows(rows, flow_step(w, derived, state), next);
  }
  at::Tensor first_matrix(const std::vector<at::Tensor>& derived) const override { return derived.size() > 1 ? derived[1] : at::Tensor(); }
  std::vector<std::pair<std::string, double>> health(const Weights& w, const at::Tensor& x) const override;
  std::optional<MemoryView> view(const MixerState& state) const override {
    return MemoryView{state[kClock], ops::cyclic_flow_slots(state[kValues].to(at::kDouble), state[kClock]).square().sum(-1)};
  }
  double flops_per_token() const override;

 private:
  // Places in state_.
  enum : size_t { kKeys, kValues, kClock, kConvs };

  at::Tensor readout(const Weights& w, at::Device device) const {
    if (c_.learned_readout) return w[readout_];
    return at::eye(c_.slots - 1, at::TensorOptions(at::kFloat).device(device)).expand({c_.heads, -1, -1});
  }
  // What the sigmoid turns into the increment of a clock that no token moves.
  at::Tensor clock_bias(const Weights& w) const {
    if (c_.rho == 0) return w[d_bias_];
    const double rate = 1 / c_.rho;
    return at::full({c_.heads}, std::log(rate / (1 - rate)), w[o_norm_].options());
  }
  at::Tensor log_alpha(const Weights& w, const at::Tensor& a) const {
    return c_.forget_gate ? ops::decay_gate(a, w[dt_bias_], w[A_log_]) : at::zeros_like(a, a.options().dtype(at::kFloat));
  }
  std::optional<at::Tensor> conv_bias(const Weights& w, const Stream& s) const {
    return c_.conv_bias ? std::optional(w[s.conv_bias]) : std::nullopt;
  }
  std::optional<at::Tensor> norm(const Weights& w, ParameterId id) const { return c_.qk_norm ? std::optional(w[id]) : std::nullopt; }
  bool packable() const;
  MixerOutput forward_packed(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens) const;
  ops::FlowWeights flow_weights(const Weights& w, const std::vector<at::Tensor>& derived) const;
  ops::FlowStep flow_step(const Weights& w, const std::vector<at::Tensor>& derived, const MixerState& state) const;
  double read_entropy(const Weights& w, const at::Tensor& x, const MixerState& state) const;
  double output_eps() const {  // RMSNorm(m o) with eps is RMSNorm(o) with eps / m^2
    const auto m = static_cast<double>(c_.slots - 1);
    return c_.norm_eps / (m * m);
  }
  at::Tensor gated(const Weights& w, const at::Tensor& o, const at::Tensor& gate) const {
    return ops::gated_rms_norm(o, w[o_norm_], output_eps(), gate.view(o.sizes())).flatten(-2);
  }

  CyclicFlowConfig c_;
  std::vector<StateSpec> state_;
  Stream streams_[3];  // q, k, v
  ParameterId q_norm_ = 0, k_norm_ = 0, a_proj_ = 0, dt_bias_ = 0, A_log_ = 0, d_proj_ = 0, d_bias_ = 0, b_proj_ = 0, b_bias_ = 0,
              readout_ = 0, gate_down_ = 0, gate_up_ = 0, gate_bias_ = 0, o_norm_ = 0, o_proj_ = 0;
};

CyclicFlowMixer::CyclicFlowMixer(const CyclicFlowConfig& config, const ParameterScope& scope) : c_(config) {
  const int64_t D = c_.hidden_size, H = c_.heads, K = c_.K, V = c_.V, M = c_.slots;
  const Init normal = Init::normal(c_.initializer_range);
  state_ = {{.name = "k", .shape = {H, K, M}, .dtype = at::kFloat, .narrow = true},
            {.name = "v", .shape = {H, M, V}, .dtype = at::kFloat, .narrow = true},
            {.name = "clock", .shape = {H}, .dtype = at::kDouble, .memory = false}};
  const char* letters[] = {"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    const std::string letter = letters[i];
    Stream& s = streams_[i];
    s.width = H * (i < 2 ? K : V);
    s.projection = scope.matrix(letter + "_proj.weight", {s.width, D}, normal);
    if (!c_.short_conv) continue;
    s.conv = scope.other(letter + "_conv1d.weight", {s.width, 1, c_.conv_size}, normal, true);
    if (c_.conv_bias) s.conv_bias = scope.other(letter + "_conv1d.bias", {s.width}, Init::zeros());
    state_.push_back({letter + "_conv", {c_.conv_size - 1, s.width}, at::kFloat, false});
  }
  if (c_.qk_norm) {
    q_norm_ = scope.other("q_norm.weight", {K}, Init::ones());
    k_norm_ = scope.other("k_norm.weight", {K}, Init::ones());
  }
  if (c_.forget_gate) {
    a_proj_ = scope.matrix("a_proj.weight", {H, D}, normal);
    dt_bias_ = scope.other("dt_bias", {H}, Init::time_step());
    A_log_ = scope.other("A_log", {H}, Init::log_uniform(0, 16));
  }
  if (!c_.constant_clock) d_proj_ = scope.matrix("d_proj.weight", {H, D}, normal);
  if (c_.rho == 0) d_bias_ = scope.other("d_proj.bias", {H}, Init::zeros());
  b_proj_ = scope.matrix("b_proj.weight", {H, D}, normal);
  b_bias_ = scope.other("b_proj.bias", {H}, Init::zeros());
  if (c_.learned_readout) readout_ = scope.other("readout", {H, M - 1, M - 1}, Init::identity(), true);
  gate_down_ = scope.matrix("g_proj.0.weight", {V, D}, normal);
  gate_up_ = scope.matrix("g_proj.1.weight", {H * V, V}, normal);
  gate_bias_ = scope.other("g_proj.1.bias", {H * V}, Init::zeros());
  o_norm_ = scope.other("o_norm.weight", {V}, Init::ones());
  o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  if (!packable()) return;
  scope.pack({streams_[0].projection, streams_[1].projection, streams_[2].projection, gate_down_, a_proj_, b_proj_, d_proj_});
  for (const Stream& s : streams_) {
    scope.pack({s.conv});
    if (c_.conv_bias) scope.pack({s.conv_bias});
  }
  for (const ParameterId id : {gate_up_, gate_bias_, dt_bias_, A_log_, b_bias_, d_bias_, o_norm_, o_proj_}) scope.pack({id});
}

// The published form of the mixer, with widths that the kernels take.
bool CyclicFlowMixer::packable() const {
  if (!c_.short_conv || c_.conv_silu || !c_.forget_gate || c_.constant_clock) return false;
  const bool streams =
      std::all_of(std::begin(streams_), std::end(streams_), [&](const Stream& s) { return ops::packs_conv(s.width, c_.conv_size); });
  return streams && ops::packs_columns(c_.hidden_size) && ops::packs_columns(c_.V) && ops::packs_norm(c_.V) && c_.heads <= 256;
}

// Backward finds no final state to begin from, and forward gives none.
MixerOutput CyclicFlowMixer::forward_packed(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens) const {
  const int64_t B = x.size(0), T = x.size(1), H = c_.heads;
  ops::FlowWeights f;
  f.projection = w.packed[streams_[0].projection];
  for (size_t i = 0; i < 3; ++i) {
    f.conv[i] = w.packed[streams_[i].conv];
    if (c_.conv_bias) f.conv_bias[i] = w.packed[streams_[i].conv_bias];
  }
  f.gate_up = w.packed[gate_up_];
  f.gate_bias = w.packed[gate_bias_].value;
  f.dt_bias = w.packed[dt_bias_];
  f.A_log = w.packed[A_log_];
  f.b_bias = w.packed[b_bias_];
  f.d_bias = w.packed[d_bias_];
  f.clock_stop_gradient = c_.clock_stop_gradient;
  const ops::FlowStreams s = ops::flow_streams(x, f, cu_seqlens);
  ops::CyclicFlowInputs in;
  in.q = s.q.view({B, T, H, c_.K});
  in.k = s.k.view({B, T, H, c_.K});
  in.v = s.v.view({B, T, H, c_.V});
  in.log_alpha = s.log_alpha;
  in.delta = s.delta;
  in.beta = s.beta;
  in.readout = readout(w, x.device());
  in.q_norm_weight = norm(w, q_norm_);
  in.k_norm_weight = norm(w, k_norm_);
  in.cu_seqlens = cu_seqlens;
  ops::CyclicFlowOptions options;
  options.norm_eps = c_.norm_eps;
  options.final_state = false;
  const at::Tensor o = ops::cyclic_flow(in, options).o;
  const at::Tensor gated = ops::gated_rms_norm(o, w.packed[o_norm_], output_eps(), s.gate.view(o.sizes()), w.packed[gate_bias_].sum);
  MixerOutput out;
  out.y = ops::linear(gated.flatten(-2), w.packed[o_proj_]);
  return out;
}

MixerOutput CyclicFlowMixer::forward(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens,
                                     const MixerState* initial) const {
  if (w.packs(o_proj_)) return forward_packed(w, x, cu_seqlens);
  const int64_t B = x.size(0), T = x.size(1), H = c_.heads;
  MixerOutput out;
  out.final_state.resize(state_.size());
  at::Tensor qkv[3];
  for (size_t i = 0; i < 3; ++i) {
    const Stream& s = streams_[i];
    at::Tensor y = ops::linear(x, w[s.projection]);
    if (c_.short_conv) {
      const std::optional<at::Tensor> tail = initial == nullptr ? std::nullopt : std::optional((*initial)[kConvs + i]);
      ops::ShortConvOutput conv = ops::short_conv(y, w[s.conv], conv_bias(w, s), tail, cu_seqlens);
      y = c_.conv_silu ? ops::silu(conv.y) : conv.y;
      out.final_state[kConvs + i] = conv.final_state.to(at::kFloat);
    }
    qkv[i] = y.view({B, T, H, s.width / H});
  }
  const at::Tensor clock_input = c_.clock_stop_gradient ? x.detach() : x;
  const at::Tensor d = c_.constant_clock ? clock_bias(w).expand({B, T, H}) : ops::linear(clock_input, w[d_proj_]) + w[d_bias_];
  ops::CyclicFlowInputs in;
  in.q = qkv[0];
  in.k = qkv[1];
  in.v = qkv[2];
  in.beta = ops::sigmoid_gate(ops::linear(x, w[b_proj_]) + w[b_bias_]);
  in.delta = ops::sigmoid_gate(d);
  in.log_alpha = log_alpha(w, c_.forget_gate ? ops::linear(x, w[a_proj_]) : in.beta);
  in.readout = readout(w, x.device());
  in.q_norm_weight = norm(w, q_norm_);
  in.k_norm_weight = norm(w, k_norm_);
  in.cu_seqlens = cu_seqlens;
  if (initial != nullptr) in.initial_state = {(*initial)[kKeys], (*initial)[kValues], (*initial)[kClock]};
  ops::CyclicFlowOptions options;
  options.norm_eps = c_.norm_eps;
  const ops::CyclicFlowOutput flow = ops::cyclic_flow(in, options);
  out.final_state[kKeys] = flow.final_state.k;
  out.final_state[kValues] = flow.final_state.v;
  out.final_state[kClock] = flow.final_state.clock;
  const at::Tensor gate = ops::linear(ops::linear(x, w[gate_down_]), w[gate_up_], w[gate_bias_].to(x.scalar_type()));
  out.y = ops::linear(gated(w, flow.o, gate), w[o_proj_]);
  return out;
}

std::vector<at::Tensor> CyclicFlowMixer::derive(const Weights& w) const {
  std::vector<at::Tensor> derived = {ops::cyclic_flow_readout_table(readout(w, w[o_proj_].device()))};
  if (!ops::packs_on(w[o_proj_].device()) || !packable() || w[o_proj_].scalar_type() != at::kBFloat16) return derived;
  std::vector<at::Tensor> rows;
  int64_t count = 0;
  for (const ParameterId id :
       {streams_[0].projection, streams_[1].projection, streams_[2].projection, gate_down_, a_proj_, b_proj_, d_proj_}) {
    rows.push_back(w[id]);
    count += w[id].size(0);
  }
  rows.push_back(at::zeros({(8 - count % 8) % 8, w[o_proj_].size(0)}, rows[0].options()));
  derived.push_back(at::cat(rows));
  derived.push_back(w[gate_bias_].to(at::kBFloat16));
  const auto single = [&](ParameterId id) { derived.push_back(w[id].to(at::kFloat).contiguous()); };
  for (const ParameterId id : {dt_bias_, A_log_, b_bias_, d_bias_}) single(id);
  for (const Stream& s : streams_) single(s.conv);
  for (const Stream& s : streams_) {
    if (c_.conv_bias) single(s.conv_bias);
  }
  return derived;
}

ops::FlowWeights CyclicFlowMixer::flow_weights(const Weights& w, const std::vector<at::Tensor>& derived) const {
  auto next = derived.begin() + 1;
  ops::FlowWeights f;
  f.projection.value = *next++;
  f.gate_bias = *next++;
  for (ops::Summed* s : {&f.dt_bias, &f.A_log, &f.b_bias, &f.d_bias}) s->value = *next++;
  for (ops::Summed& s : f.conv) s.value = *next++;
  for (ops::Summed& s : f.conv_bias) {
    if (c_.conv_bias) s.value = *next++;
  }
  f.gate_up.value = w[gate_up_];
  return f;
}

ops::FlowStep CyclicFlowMixer::flow_step(const Weights& w, const std::vector<at::Tensor>& derived, const MixerState& state) const {
  ops::FlowStep f;
  f.w = flow_weights(w, derived);
  f.readout_table = derived.at(0);
  if (c_.qk_norm) {
    f.q_norm_weight = w[q_norm_];
    f.k_norm_weight = w[k_norm_];
  }
  f.norm_eps = c_.norm_eps;
  f.o_norm = {w[o_norm_], output_eps()};
  f.o_proj = w[o_proj_];
  f.k = state[kKeys];
  f.v = state[kValues];
  f.clock = state[kClock];
  f.past = {state[kConvs], state[kConvs + 1], state[kConvs + 2]};
  return f;
}

at::Tensor CyclicFlowMixer::step(const Weights& w, const std::vector<at::Tensor>& derived, const at::Tensor& x, MixerState& state) const {
  const int64_t B = x.size(0), H = c_.heads;
  if (derived.size() > 1) {
    const at::Tensor o = ops::flow_step_gated(x, flow_step(w, derived, state));
    if (o.defined()) return ops::linear_step(o, w[o_proj_]);
  }
  ops::CyclicFlowStepInputs in;
  in.readout_table = derived.at(0);
  in.q_norm_weight = norm(w, q_norm_);
  in.k_norm_weight = norm(w, k_norm_);
  ops::CyclicFlowOptions options;
  options.norm_eps = c_.norm_eps;
  const auto read = [&](const at::Tensor& gate) {
    const at::Tensor o = ops::cyclic_flow_step(in, {state[kKeys], state[kValues], state[kClock]}, options);
    return ops::linear_step(gated(w, o, gate), w[o_proj_]);
  };
  if (derived.size() > 1) {
    const ops::FlowStreams s = ops::flow_step(x, flow_weights(w, derived), {state[kConvs], state[kConvs + 1], state[kConvs + 2]});
    in.q = s.q.view({B, H, c_.K});
    in.k = s.k.view({B, H, c_.K});
    in.v = s.v.view({B, H, c_.V});
    in.log_alpha = s.log_alpha;
    in.delta = s.delta;
    in.beta = s.beta;
    return read(s.gate);
  }
  std::vector<ops::LinearWeight> weights = {{w[streams_[0].projection], {}},
                                            {w[streams_[1].projection], {}},
                                            {w[streams_[2].projection], {}},
                                            {w[gate_down_], {}},
                                            {w[b_proj_], w[b_bias_].to(x.scalar_type())}};
  if (!c_.constant_clock) weights.push_back({w[d_proj_], w[d_bias_].to(x.scalar_type())});
  if (c_.forget_gate) weights.push_back({w[a_proj_], {}});
  std::vector<at::Tensor> y = ops::linear_steps(x, weights);
  at::Tensor qkv[3];
  for (size_t i = 0; i < 3; ++i) {
    const Stream& s = streams_[i];
    at::Tensor one = y[i];
    if (c_.short_conv) {
      one = ops::short_conv_step(one, w[s.conv], conv_bias(w, s), state[kConvs + i]);
      if (c_.conv_silu) one = ops::silu(one);
    }
    qkv[i] = one.view({B, H, s.width / H});
  }
  in.q = qkv[0];
  in.k = qkv[1];
  in.v = qkv[2];
  in.beta = ops::sigmoid_gate(y[4]);
  in.delta = ops::sigmoid_gate(c_.constant_clock ? clock_bias(w).expand({B, H}) : y[5]);
  in.log_alpha = log_alpha(w, c_.forget_gate ? y.back() : in.beta);
  return read(ops::linear_step(y[3], w[gate_up_], w[gate_bias_].to(x.scalar_type())));
}

// Clock increments and gates over all tokens; slots and reading at the last one.
std::vector<std::pair<std::string, double>> CyclicFlowMixer::health(const Weights& w, const at::Tensor& x) const {
  const at::NoGradGuard no_grad;
  const int64_t B = x.size(0), T = x.size(1), H = c_.heads, M = c_.slots;
  if (B * T == 0) return {};
  const at::Tensor d = c_.constant_clock ? clock_bias(w).expand({B, T, H}) : ops::linear(x, w[d_proj_]) + w[d_bias_];
  const at::Tensor delta = at::sigmoid(d.to(at::kDouble));
  const at::Tensor beta = at::sigmoid((ops::linear(x, w[b_proj_]) + w[b_bias_]).to(at::kDouble));
  const at::Tensor alpha = log_alpha(w, c_.forget_gate ? ops::linear(x, w[a_proj_]) : beta).to(at::kDouble).exp();
  const MixerState state = forward(w, x, std::nullopt, nullptr).final_state;
  // 1: all slots hold as much as one another; 1 / m: one slot holds everything.
  const at::Tensor energy = view(state)->energy;
  const at::Tensor spread = energy.sum(-1).square() / (energy.square().sum(-1).clamp_min(1e-300) * static_cast<double>(M - 1));
  const auto number = [](const at::Tensor& value) { return value.item<double>(); };
  return {{"clock_mean", number(delta.mean())},       {"clock_spread", number(delta.std(false))}, {"clock_least", number(delta.min())},
          {"clock_most", number(delta.max())},        {"alpha_least", number(alpha.min())},       {"alpha_mean", number(alpha.mean())},
          {"alpha_most", number(alpha.max())},        {"beta_mean", number(beta.mean())},         {"slot_occupancy", number(spread.mean())},
          {"read_entropy", read_entropy(w, x, state)}};
}

// Entropy of the last token's reading over the slots, as a share of the largest there can be.
double CyclicFlowMixer::read_entropy(const Weights& w, const at::Tensor& x, const MixerState& state) const {
  const int64_t B = x.size(0), H = c_.heads;
  at::Tensor q = ops::linear(x, w[streams_[0].projection]);
  if (c_.short_conv) q = ops::short_conv(q, w[streams_[0].conv], conv_bias(w, streams_[0]), std::nullopt, std::nullopt).y;
  if (c_.conv_silu) q = ops::silu(q);
  q = q.select(1, x.size(1) - 1).view({B, H, c_.K}).to(at::kDouble);
  if (c_.qk_norm) q = q * at::rsqrt(q.square().mean(-1, true) + c_.norm_eps) * w[q_norm_].to(at::kDouble);
  const at::Tensor keys = ops::cyclic_flow_slots(state[kKeys].transpose(2, 3).to(at::kDouble), state[kClock]);  // [B, H, m, K]
  const at::Tensor scores = at::matmul(keys, q.unsqueeze(-1)).squeeze(-1) / std::sqrt(static_cast<double>(c_.K));
  const at::Tensor logits = at::einsum("hij,bhj->bhi", {readout(w, x.device()).to(at::kDouble), scores});
  const at::Tensor p = at::softmax(logits, -1);
  return (-(p * p.clamp_min(1e-300).log()).sum(-1).mean() / std::log(static_cast<double>(std::max<int64_t>(2, c_.slots - 1))))
      .item<double>();
}

// The stages of docs/operator.md for chunks of 64 tokens.
double CyclicFlowMixer::flops_per_token() const {
  const auto C = 64.0, K = static_cast<double>(c_.K), V = static_cast<double>(c_.V), M = static_cast<double>(c_.slots);
  return 2.0 * static_cast<double>(c_.heads) * (C * K + C * M + K * M + 2 * M * M + C * M + C * V + M * V + M * (K + V));
}

}  // namespace

MixerFactory read_cyclic_flow(ConfigReader& config, const BackboneShape& backbone) {
  constexpr int64_t kMost = 1 << 20;
  CyclicFlowConfig c;
  c.hidden_size = backbone.hidden_size;
  c.norm_eps = backbone.norm_eps;
  c.initializer_range = backbone.initializer_range;
  c.heads = config.integer("num_heads", c.heads, 1, kMost);
  const auto head_dim = static_cast<double>(config.integer("head_dim", 256, 1, kMost));
  const auto width = [&](const char* key) {
    const double scaled = head_dim * config.number(key, 1.0, 0, 64);
    if (scaled < 1) config.fail(key, "a factor that leaves a head at least one number wide");
    return static_cast<int64_t>(scaled);
  };
  c.K = width("expand_k");
  c.V = width("expand_v");
  c.slots = config.integer("num_slots", c.slots, 2, kMost);
  if (c.slots % 2 != 0) config.fail("num_slots", "an even number of stored slots (m + 1)");
  c.short_conv = config.flag("use_short_conv", c.short_conv);
  c.conv_size = config.integer("conv_size", c.conv_size, 1, 256);
  c.conv_bias = config.flag("conv_bias", c.conv_bias);
  c.conv_silu = config.word("conv_activation", "none", {"none", "silu"}) == "silu";
  if (c.conv_silu && !c.short_conv) config.fail("conv_activation", "\"none\" where use_short_conv is false");
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
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<CyclicFlowMixer>(c, scope); };
}

}  // namespace cyfa
