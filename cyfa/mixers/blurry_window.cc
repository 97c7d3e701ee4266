#include "cyfa/mixers/blurry_window.h"

#include <numbers>

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 8, K = 256, V = 256;
  int64_t slots = 128;  // num_slots: M, stored; m = M - 1 are active
  int64_t rho = 2;      // tokens a slot
  ShortConvConfig conv;
};

// The recurrence K_t = Diag(1 - phi_t) K_{t-1} + phi_t k_t^T, where phi_t(r) is the Dirichlet profile (eq:app-constant-rate-profile) at
// u = (t - rho r) mod rho m. A profile has negative side lobes, and there 1 - phi is above 1. No gate of the ops is: growth is taken out of
// the state. With c(u) the sum of max(log(1 - phi), 0) over the tokens since the slot was last emptied (phi(0) = 1), the state times
// exp(-c) has gates of at most 1 and writes phi exp(-c), and what is read is multiplied by exp(c), which is bounded, as every slot is
// emptied once a cycle.
struct Profile {
  at::Tensor write, log_alpha, rescale;  // [rho m], by u

  Profile(int64_t m, int64_t rho) {
    const int64_t cycle = rho * m;
    const at::Tensor u = at::arange(cycle, at::kDouble);
    // The sum of cosines in closed form; sin(pi u / rho) with u modulo its period, so that whole slots are zeros to the last bits.
    at::Tensor phi = at::sin(u.remainder(2 * rho) * (std::numbers::pi / static_cast<double>(rho))) /
                     (static_cast<double>(m) * at::sin(u * (std::numbers::pi / static_cast<double>(cycle))));
    phi[0] = 1.0;
    const at::Tensor gate = at::log1p(-phi);
    at::Tensor growth = gate.clamp_min(0);
    growth[0] = 0.0;
    growth = growth.cumsum(0);
    write = phi * at::exp(-growth);
    log_alpha = gate.clamp_max(0);
    rescale = at::exp(growth);
  }
};

class BlurryWindow final : public StreamMixer {
 public:
  BlurryWindow(const Config& c, const ParameterScope& scope) : c_(c), profile_(c.slots - 1, c.rho) {
    const int64_t D = c.backbone.hidden_size, H = c.heads;
    const Init normal = Init::normal(c.backbone.initializer_range);
    add_streams(scope, c.backbone, {H * c.K, H * c.K, H * c.V}, c.conv);
    memory_.keys = keep_memory({H, c.K, c.slots}, "k");
    memory_.values = keep_memory({H, c.slots, c.V}, "v");
    position_ = keep_position();
    q_norm_ = scope.other("q_norm.weight", {c.K}, Init::ones());
    k_norm_ = scope.other("k_norm.weight", {c.K}, Init::ones());
    gate_down_ = scope.matrix("g_proj.0.weight", {c.V, D}, normal);
    gate_up_ = scope.matrix("g_proj.1.weight", {H * c.V, c.V}, normal);
    gate_bias_ = scope.other("g_proj.1.bias", {H * c.V}, Init::zeros());
    o_norm_ = scope.other("o_norm.weight", {c.V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * c.V}, normal);
  }

  bool recordable() const override { return false; }  // its tables come from the host
  at::Tensor mix(Call& call) const override {
    const double eps = c_.backbone.norm_eps;
    const std::vector<at::Tensor> y = project(call, {false, false, false}, {{gate_down_, {}}});
    const at::Tensor q = ops::rms_norm(split_heads(y[0], c_.heads), call[q_norm_], eps),
                     k = ops::rms_norm(split_heads(y[1], c_.heads), call[k_norm_], eps);
    const int64_t m = c_.slots - 1;
    const at::Tensor position = call.count_positions(position_);
    const at::Tensor u = (position.unsqueeze(-1) - c_.rho * at::arange(m, position.options())).remainder(c_.rho * m);  // [.., m]
    // [.., H, M]: every head alike; the padding slot holds nothing, forgets nothing and is not read.
    const at::ScalarType type = at::promote_types(k.scalar_type(), at::kFloat);
    const auto slots = [&](const at::Tensor& table, double padding) {
      const at::Tensor rows = at::constant_pad_nd(table.to(u.device(), type).index({u}), {0, 1}, padding).unsqueeze(-2);
      std::vector<int64_t> shape = rows.sizes().vec();
      shape[shape.size() - 2] = c_.heads;
      return rows.expand(shape);
    };
    const at::Tensor hidden = at::constant_pad_nd(at::zeros({m}, k.options().dtype(type)), {0, 1}, -INFINITY);
    const at::Tensor o = memory_.read(call, q, k, split_heads(y[2], c_.heads), slots(profile_.write, 0), slots(profile_.log_alpha, 0),
                                      1 / std::sqrt(static_cast<double>(c_.K)), slots(profile_.rescale, 1), hidden);
    const at::Tensor gate = split_heads(call.linear(y[3], gate_up_, gate_bias_), c_.heads);
    return call.linear(join_heads(gated_norm(o, call[o_norm_], eps, gate, true)), o_proj_);
  }

  double flops_per_token() const override {
    return linear_attention_flops(c_.heads, c_.K, c_.slots) + linear_attention_flops(c_.heads, c_.slots, c_.V);
  }

 private:
  Config c_;
  Profile profile_;
  SlotMemory memory_;
  ParameterId q_norm_ = 0, k_norm_ = 0, gate_down_ = 0, gate_up_ = 0, gate_bias_ = 0, o_norm_ = 0, o_proj_ = 0;
  size_t position_ = 0;
};

}  // namespace

MixerFactory read_blurry_window(ConfigReader& config, const BackboneShape& backbone) {
  Config c;
  c.backbone = backbone;
  c.heads = config.integer("num_heads", c.heads, 1, 1 << 20);
  const int64_t head_dim = config.integer("head_dim", c.K, 1, 1 << 20);
  c.K = head_width(config, "expand_k", 1, head_dim, 1);
  c.V = head_width(config, "expand_v", 1, head_dim, 1);
  c.slots = config.integer("num_slots", c.slots, 2, 1 << 16);
  if (c.slots % 2 != 0) config.fail("num_slots", "an even number of stored slots (m + 1)");
  c.rho = config.integer("rho", c.rho, 1, 1 << 16);
  if (c.rho * c.slots > 1 << 24) config.fail("rho", "a cycle, rho * num_slots, of at most 16,777,216 tokens");
  c.conv = ShortConvConfig::read(config, true);
  config.bookkeeping({"attn_mode"});
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<BlurryWindow>(c, scope); };
}

}  // namespace cyfa
