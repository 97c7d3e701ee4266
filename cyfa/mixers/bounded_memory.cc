#include "cyfa/mixers/bounded_memory.h"

#include "cyfa/mixers/parts.h"
#include "cyfa/ops/common/check.h"

namespace cyfa {
namespace {

struct Config : QkvConfig {
  int64_t slots = 64;
  bool rope = true;
  double clamp_min = -32, clamp_max = 32;
};

class BoundedMemory final : public QkvMixer {
 public:
  BoundedMemory(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, H = c.shape.heads, V = c.shape.V;
    const Init normal = c.normal();
    add_qkv(scope, c);
    memory_ = keep_slots(c.shape, c.slots);
    mass_ = keep({.name = "mass", .shape = {H, c.slots}, .dtype = at::kDouble, .memory = false});
    if (c.rope) position_ = keep_position();
    s_proj_ = scope.matrix("s_proj.weight", {H * c.slots, D}, normal);
    g_proj_ = scope.matrix("g_proj.weight", {H * V, D}, normal);
    norm_ = scope.other("g_norm.weight", {V}, Init::ones());
    o_proj_ = scope.matrix("o_proj.weight", {D, H * V}, normal);
  }

  at::Tensor mix(Call& call) const override {
    const int64_t H = c_.shape.heads;
    Qkv y = project(call, {c_.conv.on, c_.conv.on, c_.conv.on}, {s_proj_, g_proj_});
    at::Tensor q = split_heads(y.q, H), k = split_heads(y.k, H);
    if (c_.rope) {
      const at::Tensor position = call.count_positions(position_);
      q = rotary(q, position);
      k = rotary(k, position);
    }
    const at::Tensor weight = split_heads(y[s_proj_], H).clamp(c_.clamp_min, c_.clamp_max).to(at::kDouble);
    // A slot holds the mean of its writes with weights exp(s). With the mass Z_t, the sum of exp(s_i) for i <= t, this is a recurrence with
    // gate Z_{t-1} / Z_t and write weight exp(s_t) / Z_t, both at most 1. The gate of an empty slot is set to 1.
    const auto [before, now] = log_mass(call, weight);
    const at::ScalarType type = at::promote_types(k.scalar_type(), at::kFloat);
    const at::Tensor log_alpha = at::where(before.isinf(), at::zeros_like(before), before - now).clamp_max(0).to(type);
    const at::Tensor o = memory_.read(call, q, k, split_heads(y.v, H), (weight - now).exp().to(type), log_alpha,
                                      1 / std::sqrt(static_cast<double>(c_.shape.K)));
    return call.linear(join_heads(gated_norm(o, call[norm_], c_.backbone.norm_eps, split_heads(y[g_proj_], H), false)), o_proj_);
  }

  double flops_per_token() const override {
    return linear_attention_flops(c_.shape.heads, c_.shape.K, c_.slots) + linear_attention_flops(c_.shape.heads, c_.slots, c_.shape.V);
  }

 private:
  // log Z before and after each token, [.., H, M]; updates the mass state.
  std::pair<at::Tensor, at::Tensor> log_mass(Call& call, const at::Tensor& s) const {
    const at::Tensor first = call.before(mass_);  // [N, H, M] or undefined
    if (call.is_step()) {
      const at::Tensor before = first.log();
      call.after(mass_, first + s.exp());
      return {before, first.log()};
    }
    const std::vector<int64_t> offsets =
        call.cu_seqlens() ? ops::check::sequence_offsets("abc", *call.cu_seqlens(), s.size(1)) : std::vector<int64_t>{0, s.size(1)};
    std::vector<at::Tensor> before, now, last;
    for (size_t n = 0; n + 1 < offsets.size(); ++n) {
      const at::Tensor part = s.slice(1, offsets[n], offsets[n + 1]);  // [B, t, H, M]
      const at::Tensor start =
          !first.defined()
              ? at::full({part.size(0), 1, s.size(2), s.size(3)}, -INFINITY, s.options())
              : (call.cu_seqlens() ? first.slice(0, static_cast<int64_t>(n), static_cast<int64_t>(n) + 1) : first).log().unsqueeze(1);
      at::Tensor z = part.size(1) == 0 ? part : at::logcumsumexp(part, 1);
      if (first.defined()) z = at::logaddexp(z, start);
      const at::Tensor all = at::cat({start, z}, 1);
      before.push_back(all.narrow(1, 0, part.size(1)));
      now.push_back(z);
      last.push_back(all.select(1, part.size(1)).exp());
    }
    call.after(mass_, at::cat(last, 0));
    return {at::cat(before, 1), at::cat(now, 1)};
  }

  Config c_;
  SlotMemory memory_;
  ParameterId s_proj_ = 0, g_proj_ = 0, norm_ = 0, o_proj_ = 0;
  size_t mass_ = 0, position_ = 0;
};

}  // namespace

MixerFactory read_bounded_memory(ConfigReader& config, const BackboneShape& backbone) {
  Config c{QkvConfig::read(config, backbone, HeadShape::Shares{.heads = 4, .expand_k = 0.5, .expand_v = 1, .grouped = false}, false)};
  c.slots = config.integer_or_null("num_slots", c.slots, 1, 1 << 20).value_or(c.shape.K);
  c.rope = config.flag("use_rope", c.rope);
  if (c.rope && c.shape.K % 2 != 0) config.fail("expand_k", "heads of an even width: rotary positions turn pairs");
  // The state stores masses, not their logarithms: wider bounds would overflow.
  c.clamp_min = config.number("clamp_min", c.clamp_min, -300, 300);
  c.clamp_max = config.number("clamp_max", c.clamp_max, c.clamp_min, 300);
  config.bookkeeping({"gate_low_rank_dim"});
  fla_bookkeeping(config);
  return factory_of<BoundedMemory>(c);
}

}  // namespace cyfa
