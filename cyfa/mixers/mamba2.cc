#include "cyfa/mixers/mamba2.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : MambaConfig {
  int64_t taps = 4;  // conv_kernel
  bool conv_bias = true;
  bool norm = true, norm_before_gate = false;
  bool wide_skip = false;  // D_has_hdim
  double dt_low = 0, dt_high = INFINITY;
  double A_low = 1, A_high = 16;
};

class Mamba2 final : public Mixer {
 public:
  Mamba2(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, H = c.heads, I = c.inner(), conv = I + 2 * c.groups * c.N;
    const Init normal = Init::normal(c.backbone.initializer_range);
    in_proj_ = scope.matrix("in_proj.weight", {I + conv + H, D}, normal);
    if (c.bias) in_bias_ = scope.other("in_proj.bias", {I + conv + H}, Init::zeros());
    conv_ = scope.other("conv1d.weight", {conv, 1, c.taps}, normal, true);
    if (c.conv_bias) conv_bias_ = scope.other("conv1d.bias", {conv}, Init::zeros());
    dt_bias_ = scope.other("dt_bias", {H}, Init::time_step());
    A_log_ = scope.other("A_log", {H}, Init::log_uniform(c.A_low, c.A_high));
    D_ = scope.other("D", {c.wide_skip ? I : H}, Init::ones());
    if (c.norm) norm_ = scope.other("norm.weight", {I}, Init::ones());
    out_proj_ = scope.matrix("out_proj.weight", {D, I}, c.output_init());
    if (c.bias) out_bias_ = scope.other("out_proj.bias", {D}, Init::zeros());
    memory_ = keep_memory({H, c.N, c.P});
    tail_ = keep({.name = "conv", .shape = {c.taps - 1, conv}, .memory = false});
  }

  at::Tensor mix(Call& call) const override {
    const int64_t H = c_.heads, G = c_.groups, I = c_.inner(), BC = G * c_.N;
    const at::Tensor all = call.linear(call.x(), in_proj_, c_.bias ? std::optional(in_bias_) : std::nullopt);
    const auto [z, convolved, time_step] = split<3>(all, {I, I + 2 * BC, H});
    const at::Tensor xBC = ops::silu(call.short_conv(convolved, conv_, c_.conv_bias ? std::optional(conv_bias_) : std::nullopt, tail_));
    const auto [values, keys, queries] = split<3>(xBC, {I, BC, BC});  // x, B, C
    at::Tensor dt = softplus_gate(time_step, call[dt_bias_]);
    if (c_.dt_low > 0 || std::isfinite(c_.dt_high)) dt = dt.clamp(c_.dt_low, c_.dt_high);
    const at::Tensor x = split_heads(values, H);
    ops::RecurrenceOptions options;
    options.scale = 1;
    const at::Tensor S = call.recurrence("scalar_gated_la", memory_,
                                         {.q = split_heads(queries, G),
                                          .k = split_heads(keys, G),
                                          .v = x * dt.unsqueeze(-1).to(x.scalar_type()),
                                          .log_alpha = dt * -at::exp(call[A_log_].to(dt.scalar_type()))},
                                         options);
    const at::Tensor skip = (c_.wide_skip ? call[D_].view({H, c_.P}) : call[D_].unsqueeze(-1)).to(x.scalar_type());
    return call.linear(normed(call, join_heads(S + x * skip), z), out_proj_, c_.bias ? std::optional(out_bias_) : std::nullopt);
  }

  double flops_per_token() const override { return linear_attention_flops(c_.heads, c_.N, c_.P); }

 private:
  // RMSNorm per group and the gate, in the order of the original implementation.
  at::Tensor normed(Call& call, const at::Tensor& y, const at::Tensor& z) const {
    const auto norm = [&](const at::Tensor& x) {
      const int64_t G = c_.groups;
      if (G == 1) return ops::rms_norm(x, call[norm_], c_.backbone.norm_eps);
      const at::Tensor unit = at::ones({c_.inner() / G}, call[norm_].options());
      return join_heads(ops::rms_norm(split_heads(x, G), unit, c_.backbone.norm_eps)) * call[norm_].to(x.scalar_type());
    };
    if (!c_.norm) return ops::swiglu(z, y);
    return c_.norm_before_gate ? ops::swiglu(z, norm(y)) : norm(ops::swiglu(z, y));
  }

  Config c_;
  ParameterId in_proj_ = 0, in_bias_ = 0, conv_ = 0, conv_bias_ = 0, dt_bias_ = 0, A_log_ = 0, D_ = 0, norm_ = 0, out_proj_ = 0,
              out_bias_ = 0;
  size_t memory_ = 0, tail_ = 0;
};

}  // namespace

MixerFactory read_mamba2(ConfigReader& config, const BackboneShape& backbone) {
  Config c{MambaConfig::read(config, backbone)};
  const int64_t inner = c.inner();
  if (config.integer("intermediate_size", inner, 1, 1 << 20) != inner)
    config.fail("intermediate_size", std::to_string(inner) + " = expand * hidden_size");
  c.taps = config.integer("conv_kernel", c.taps, 1, 256);
  c.conv_bias = config.flag("use_conv_bias", c.conv_bias);
  c.norm = config.flag("rmsnorm", c.norm);
  c.norm_before_gate = config.flag("norm_before_gate", c.norm_before_gate);
  c.wide_skip = config.flag("D_has_hdim", c.wide_skip);
  std::tie(c.A_low, c.A_high) = config.range("A_init_range", c.A_low, c.A_high);
  std::tie(c.dt_low, c.dt_high) = config.range("dt_limit", c.dt_low, c.dt_high);
  config.only("conv_init", nullptr);
  return factory_of<Mamba2>(c);
}

}  // namespace cyfa
