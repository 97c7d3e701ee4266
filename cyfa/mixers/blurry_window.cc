#include "cyfa/mixers/blurry_window.h"

#include <numbers>

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : QkvConfig {
  int64_t slots = 128;  // num_slots: M slots are stored, m = M - 1 are active
  int64_t rho = 2;      // tokens per slot
};

// The recurrence K_t = Diag(1 - phi_t) K_{t-1} + phi_t k_t^T, where phi_t(r) is the Dirichlet profile (eq:app-constant-rate-profile) at
// u = (t - rho r) mod rho m. The profile has negative side lobes, where the gate 1 - phi exceeds 1. The ops require gates of at most 1, so
// the growth is factored out of the state: let c(u) be the sum of max(log(1 - phi), 0) over the tokens since the slot was last cleared
// (phi(0) = 1). The state times exp(-c) then has gates of at most 1 and write weights phi exp(-c), and reads are multiplied by exp(c). c is
// bounded because every slot is cleared once per cycle.
struct Profile {
  at::Tensor write, log_alpha, rescale;  // [rho m], by u

  Profile(int64_t m, int64_t rho) {
    const int64_t cycle = rho * m;
    const at::Tensor u = at::arange(cycle, at::kDouble);
    // The sum of cosines in closed form. In sin(pi u / rho), u is reduced modulo the period, so that the profile is zero up to rounding at
    // whole slots.
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

class BlurryWindow final : public QkvMixer {
 public:
  BlurryWindow(const Config& c, const ParameterScope& scope) : c_(c), profile_(c.slots - 1, c.rho) {
    const int64_t D = c.backbone.hidden_size, H = c.shape.heads, K = c.shape.K, V = c.shape.V;
    const Init normal = c.normal();
    add_qkv(scope, c);
    memory_ = keep_slots(c.shape, c.slots);
    position_ = keep_position();
    q_norm_ = scope.other("q_norm.weight", {K}, Init::ones());
    k_norm_ = scope.other("k_norm.weight", {K}, Init::ones());
    gate_first_ = scope.matrix("g_proj.0.weight", {V, D}, normal);
    gate_second_ = scope.matrix("g_proj.1.weight", {H * V, V}, normal);
    gate_bias_ = scope.other("g_proj.1.bias", {H * V}, Init::zeros());
    o_norm_ = scope.other("o_norm.weight", {V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  std::string needs_host() const override { return "blurry_window_attention copies its profile from the host in every step"; }
  at::Tensor mix(Call& call) const override {
    const double eps = c_.backbone.norm_eps;
    const int64_t H = c_.shape.heads;
    Qkv y = project(call, {false, false, false}, {gate_first_});
    const at::Tensor q = ops::rms_norm(split_heads(y.q, H), call[q_norm_], eps), k = ops::rms_norm(split_heads(y.k, H), call[k_norm_], eps);
    const int64_t m = c_.slots - 1;
    const at::Tensor position = call.count_positions(position_);
    const at::Tensor u = (position.unsqueeze(-1) - c_.rho * at::arange(m, position.options())).remainder(c_.rho * m);  // [.., m]
    // [.., H, M], the same for every head. The padding slot is never written, has gate 1 and is masked in the softmax.
    const at::ScalarType type = at::promote_types(k.scalar_type(), at::kFloat);
    const auto slots = [&](const at::Tensor& table, double padding) {
      const at::Tensor rows = at::constant_pad_nd(table.to(u.device(), type).index({u}), {0, 1}, padding).unsqueeze(-2);
      std::vector<int64_t> shape = rows.sizes().vec();
      shape[shape.size() - 2] = H;
      return rows.expand(shape);
    };
    const at::Tensor hidden = at::constant_pad_nd(at::zeros({m}, k.options().dtype(type)), {0, 1}, -INFINITY);
    const at::Tensor o = memory_.read(call, q, k, split_heads(y.v, H), slots(profile_.write, 0), slots(profile_.log_alpha, 0),
                                      1 / std::sqrt(static_cast<double>(c_.shape.K)), slots(profile_.rescale, 1), hidden);
    const at::Tensor gate = split_heads(call.linear(y[gate_first_], gate_second_, gate_bias_), H);
    return call.linear(join_heads(gated_norm(o, call[o_norm_], eps, gate, true)), o_proj_);
  }

  double flops_per_token() const override {
    return linear_attention_flops(c_.shape.heads, c_.shape.K, c_.slots) + linear_attention_flops(c_.shape.heads, c_.slots, c_.shape.V);
  }

 private:
  Config c_;
  Profile profile_;
  SlotMemory memory_;
  ParameterId q_norm_ = 0, k_norm_ = 0, gate_first_ = 0, gate_second_ = 0, gate_bias_ = 0, o_norm_ = 0, o_proj_ = 0;
  size_t position_ = 0;
};

}  // namespace

MixerFactory read_blurry_window(ConfigReader& config, const BackboneShape& backbone) {
  Config c{QkvConfig::read(config, backbone, HeadShape::Widths{.heads = 8, .head_dim = 256, .expand_k = 1, .expand_v = 1}, true)};
  c.slots = config.integer("num_slots", c.slots, 2, 1 << 16);
  if (c.slots % 2 != 0) config.fail("num_slots", "an even number of stored slots (m + 1)");
  c.rho = config.integer("rho", c.rho, 1, 1 << 16);
  if (c.rho * c.slots > 1 << 20) config.fail("rho", "a cycle, rho * num_slots, of at most 1,048,576 tokens");
  config.bookkeeping({"attn_mode"});
  return factory_of<BlurryWindow>(c);
}

}  // namespace cyfa
