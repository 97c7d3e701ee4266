#include "cyfa/mixers/mamba2.h"

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config {
  BackboneShape backbone;
  int64_t heads = 0, P = 64, N = 128, groups = 1;  // num_heads, head_dim, state_size, n_groups
  int64_t taps = 4;                                // conv_kernel
  bool bias = false, conv_bias = true;
  bool norm = true, norm_before_gate = false;
  bool wide_skip = false;  // D_has_hdim
  double dt_low = 0, dt_high = INFINITY;
  double A_low = 1, A_high = 16;
  bool rescale = true;  // rescale_prenorm_residual

  int64_t inner() const { return heads * P; }
};

class Mamba2 final : public CallMixer {
 public:
  Mamba2(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, I = c.inner(), conv = I + 2 * c.groups * c.N;
    const Init normal = Init::normal(c.backbone.initializer_range);
    in_proj_ = scope.matrix("in_proj.weight", {I + conv + c.heads, D}, normal);
    if (c.bias) in_bias_ = scope.other("in_proj.bias", {I + conv + c.heads}, Init::zeros());
    conv_ = scope.other("conv1d.weight", {conv, 1, c.taps}, normal, true);
    if (c.conv_bias) conv_bias_ = scope.other("conv1d.bias", {conv}, Init::zeros());
    dt_bias_ = scope.other("dt_bias", {c.heads}, Init::time_step());
    A_log_ = scope.other("A_log", {c.heads}, Init::log_uniform(c.A_low, c.A_high));
    D_ = scope.other("D", {c.wide_skip ? I : c.heads}, Init::ones());
    if (c.norm) norm_ = scope.other("norm.weight", {I}, Init::ones());
    // The origin draws the projection back into the residual stream by its width, and smaller the deeper the model is.
    const auto depth = static_cast<double>(c.backbone.layers), width = static_cast<double>(I);
    out_proj_ = scope.matrix("out_proj.weight", {D, I}, c.rescale ? Init::uniform(1 / std::sqrt(width * depth)) : normal);
    if (c.bias) out_bias_ = scope.other("out_proj.bias", {D}, Init::zeros());
    memory_ = keep_memory({c.heads, c.N, c.P});
    tail_ = keep({"conv", {c.taps - 1, conv}, at::kFloat, false});
  }

  at::Tensor mix(Call& call) const override {
    const int64_t I = c_.inner(), BC = c_.groups * c_.N;
    const at::Tensor all = call.linear(call.x(), in_proj_, c_.bias ? std::optional(in_bias_) : std::nullopt);
    const std::vector<at::Tensor> parts = all.split_with_sizes({I, I + 2 * BC, c_.heads}, -1);  // z; x, B, C; dt
    const at::Tensor xBC = ops::silu(call.short_conv(parts[1], conv_, c_.conv_bias ? std::optional(conv_bias_) : std::nullopt, tail_));
    const std::vector<at::Tensor> y = xBC.split_with_sizes({I, BC, BC}, -1);
    const auto shared = [&](const at::Tensor& x) { return repeat_heads(split_heads(x, c_.groups), c_.heads / c_.groups); };
    at::Tensor dt = softplus_gate(parts[2], call[dt_bias_]);
    if (c_.dt_low > 0 || std::isfinite(c_.dt_high)) dt = dt.clamp(c_.dt_low, c_.dt_high);
    const at::Tensor x = split_heads(y[0], c_.heads);
    ops::RecurrenceOptions options;
    options.scale = 1;
    const at::Tensor S = call.scalar_gated_la(memory_, shared(y[2]), shared(y[1]), x * dt.unsqueeze(-1).to(x.scalar_type()),
                                              dt * -at::exp(call[A_log_].to(dt.scalar_type())), options);
    const at::Tensor skip = (c_.wide_skip ? call[D_].view({c_.heads, c_.P}) : call[D_].unsqueeze(-1)).to(x.scalar_type());
    return call.linear(normed(call, join_heads(S + x * skip), parts[0]), out_proj_, c_.bias ? std::optional(out_bias_) : std::nullopt);
  }

  double flops_per_token() const override { return linear_attention_flops(c_.heads, c_.N, c_.P); }

 private:
  // RMSNorm of each group and the gate, in the origin's order.
  at::Tensor normed(Call& call, const at::Tensor& y, const at::Tensor& z) const {
    const auto norm = [&](const at::Tensor& x) {
      if (c_.groups == 1) return ops::rms_norm(x, call[norm_], c_.backbone.norm_eps);
      const at::Tensor unit = at::ones({c_.inner() / c_.groups}, call[norm_].options());
      return join_heads(ops::rms_norm(split_heads(x, c_.groups), unit, c_.backbone.norm_eps)) * call[norm_].to(x.scalar_type());
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
  constexpr int64_t kMost = 1 << 20;
  Config c;
  c.backbone = backbone;
  c.P = config.integer("head_dim", c.P, 1, kMost);
  const int64_t inner = head_width(config, "expand", 2, backbone.hidden_size, 1);
  if (inner % c.P != 0) config.fail("head_dim", "a divisor of expand * hidden_size = " + std::to_string(inner));
  c.heads = inner / c.P;
  if (config.integer("num_heads", c.heads, 0, kMost) != c.heads)
    config.fail("num_heads", std::to_string(c.heads) + " = expand * hidden_size / head_dim");
  if (config.integer("intermediate_size", inner, 1, kMost) != inner)
    config.fail("intermediate_size", std::to_string(inner) + " = expand * hidden_size");
  c.N = config.integer("state_size", c.N, 1, kMost);
  c.groups = read_groups(config, "n_groups", c.heads, 1);
  c.taps = config.integer("conv_kernel", c.taps, 1, 256);
  c.bias = config.flag("use_bias", c.bias);
  c.conv_bias = config.flag("use_conv_bias", c.conv_bias);
  c.norm = config.flag("rmsnorm", c.norm);
  c.norm_before_gate = config.flag("norm_before_gate", c.norm_before_gate);
  c.wide_skip = config.flag("D_has_hdim", c.wide_skip);
  c.rescale = config.flag("rescale_prenorm_residual", c.rescale);
  std::tie(c.A_low, c.A_high) = config.range("A_init_range", c.A_low, c.A_high);
  std::tie(c.dt_low, c.dt_high) = config.range("dt_limit", c.dt_low, c.dt_high);
  config.only("dt_min", 0.001);  // of the first time steps
  config.only("dt_max", 0.1);
  config.only("dt_init_floor", 1e-4);
  config.only("conv_init", nullptr);
  config.bookkeeping({"chunk_size", "residual_in_fp32"});
  return [c](const ParameterScope& scope, int64_t) { return std::make_unique<Mamba2>(c, scope); };
}

}  // namespace cyfa
