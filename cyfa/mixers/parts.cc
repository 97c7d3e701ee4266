#include "cyfa/mixers/parts.h"

#include <ATen/Parallel.h>

#include <cmath>

namespace cyfa {
namespace {

bool recorded(const at::Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad(); }

// Applies `exact` to each element in double if x is fp32 on the CPU and needs no gradient; otherwise applies `torch`. Torch's vectorized
// and scalar code differ in the last bit, and which one processes an element depends on the batch; this loop makes results independent of
// it.
template <class F, class G>
at::Tensor each(const at::Tensor& x, const F& torch, const G& exact) {
  const at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  if (!wide.is_cpu() || wide.scalar_type() != at::kFloat || recorded(wide)) return torch(wide);
  const at::Tensor in = wide.contiguous(), out = at::empty_like(in);
  const float* from = in.const_data_ptr<float>();
  float* to = out.data_ptr<float>();
  at::parallel_for(0, in.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = static_cast<float>(exact(static_cast<double>(from[i])));
  });
  return out;
}

constexpr double kChunk = 64;
constexpr int64_t kMostHeads = 1 << 20;  // far beyond any real config

}  // namespace

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() /= heads;
  shape.insert(shape.end() - 1, heads);
  return x.reshape(shape);
}

at::Tensor repeat_heads(const at::Tensor& x, int64_t each_group) { return each_group == 1 ? x : x.repeat_interleave(each_group, -2); }

at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, double theta) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor i = at::arange(half, x.options().dtype(at::kDouble));
  const at::Tensor rate = at::pow(theta, i * (-2.0 / static_cast<double>(2 * half)));
  const at::Tensor angle = (positions.to(at::kDouble).unsqueeze(-1) * rate).unsqueeze(-2);  // [.., 1, half]
  const at::ScalarType type = at::promote_types(x.scalar_type(), at::kFloat);
  const at::Tensor cos = at::cos(angle).to(type), sin = at::sin(angle).to(type);
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1).to(x.scalar_type());
}

at::Tensor log_sigmoid_gate(const at::Tensor& x) {
  return each(
      x, [](const at::Tensor& y) { return at::log_sigmoid(y); },
      [](double y) { return std::min(y, 0.0) - std::log1p(std::exp(-std::abs(y))); });
}

at::Tensor one_minus_exp(const at::Tensor& log_alpha) {
  return each(
      log_alpha, [](const at::Tensor& y) { return -at::expm1(y); }, [](double y) { return -std::expm1(y); });
}

at::Tensor softplus_gate(const at::Tensor& x, const at::Tensor& bias) { return -ops::decay_gate(x, bias, at::zeros_like(bias)); }

at::Tensor exact_gelu(const at::Tensor& x) {
  return each(
             x, [](const at::Tensor& y) { return at::gelu(y); }, [](double y) { return 0.5 * y * (1 + std::erf(y / std::sqrt(2.0))); })
      .to(x.scalar_type());
}

at::Tensor tanh_gate(const at::Tensor& x) {
  return each(
      x, [](const at::Tensor& y) { return at::tanh(y); }, [](double y) { return std::tanh(y); });
}

at::Tensor l2_norm(const at::Tensor& x) {
  constexpr double kEps = 1e-6;
  const auto width = static_cast<double>(x.size(-1));  // rms_norm divides by the mean of squares, not by their sum
  const at::Tensor weight = at::full({x.size(-1)}, 1 / std::sqrt(width), x.options().dtype(at::promote_types(x.scalar_type(), at::kFloat)));
  return ops::rms_norm(x, weight, kEps / width);
}

at::Tensor gumbel_noise(const at::Tensor& like, uint64_t seed) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::globalContext().defaultGenerator(like.device()).clone();
  generator.set_current_seed(seed);
  return at::empty_like(like, at::MemoryFormat::Contiguous).exponential_(1, generator).log_().neg_();
}

std::string read_feature_map(ConfigReader& config, const std::string& otherwise) {
  return config.word("feature_map", otherwise, {"identity", "swish", "silu", "relu", "elu"});
}

at::Tensor feature_map(const std::string& name, const at::Tensor& x) {
  if (name == "swish" || name == "silu") return ops::silu(x);
  if (name == "relu") return at::relu(x);
  if (name == "elu")
    return each(
               x, [](const at::Tensor& y) { return at::elu(y) + 1; }, [](double y) { return y > 0 ? y + 1 : std::exp(y); })
        .to(x.scalar_type());
  return x;
}

int64_t head_width(ConfigReader& config, const char* key, double otherwise, int64_t hidden_size, int64_t heads) {
  const double width = static_cast<double>(hidden_size) * config.number(key, otherwise, 0, 64) / static_cast<double>(heads);
  if (width < 1 || std::abs(width - std::round(width)) > 1e-6)
    config.fail(key, "a factor that gives each of the heads the same whole width");
  return std::lround(width);
}

int64_t read_groups(ConfigReader& config, const char* key, int64_t heads, std::optional<int64_t> absent) {
  const int64_t groups = config.integer_or_null(key, absent, 1, heads).value_or(heads);
  config.note(key, groups);
  if (heads % groups != 0) config.fail(key, "a divisor of the heads, of which there are " + std::to_string(heads));
  return groups;
}

HeadShape HeadShape::of_model_width(ConfigReader& config, const BackboneShape& backbone, const Shares& otherwise) {
  HeadShape s;
  s.heads = config.integer("num_heads", otherwise.heads, 1, kMostHeads);
  s.groups = otherwise.grouped ? read_groups(config, "num_kv_heads", s.heads) : s.heads;
  s.K = head_width(config, "expand_k", otherwise.expand_k, backbone.hidden_size, s.heads);
  s.V = head_width(config, "expand_v", otherwise.expand_v, backbone.hidden_size, s.heads);
  return s;
}

HeadShape HeadShape::of_head_dim(ConfigReader& config, const Widths& otherwise) {
  HeadShape s;
  s.heads = s.groups = config.integer("num_heads", otherwise.heads, 1, kMostHeads);
  const int64_t width = config.integer("head_dim", otherwise.head_dim, 1, kMostHeads);
  const auto expanded = [&](const char* key, double factor) {
    if (!otherwise.truncated) return head_width(config, key, factor, width, 1);
    const double scaled = static_cast<double>(width) * config.number(key, factor, 0, 64);
    if (scaled < 1) config.fail(key, "a factor that leaves a head at least one number wide");
    return static_cast<int64_t>(scaled);
  };
  s.K = otherwise.expand_k == 0 ? width : expanded("expand_k", otherwise.expand_k);
  s.V = expanded("expand_v", otherwise.expand_v);
  return s;
}

MambaConfig MambaConfig::read(ConfigReader& config, const BackboneShape& backbone) {
  MambaConfig c;
  c.backbone = backbone;
  c.P = config.integer("head_dim", c.P, 1, kMostHeads);
  const int64_t inner = head_width(config, "expand", 2, backbone.hidden_size, 1);
  if (inner % c.P != 0) config.fail("head_dim", "a divisor of expand * hidden_size = " + std::to_string(inner));
  c.heads = inner / c.P;
  if (config.integer("num_heads", c.heads, 0, kMostHeads) != c.heads)
    config.fail("num_heads", std::to_string(c.heads) + " = expand * hidden_size / head_dim");
  c.N = config.integer("state_size", c.N, 1, kMostHeads);
  c.groups = read_groups(config, "n_groups", c.heads, 1);
  c.bias = config.flag("use_bias", c.bias);
  c.rescale = config.flag("rescale_prenorm_residual", c.rescale);
  config.only("dt_min", 0.001);  // the range of initial time steps, as in Init::time_step()
  config.only("dt_max", 0.1);
  config.only("dt_init_floor", 1e-4);
  config.bookkeeping({"chunk_size", "residual_in_fp32"});
  return c;
}

Init MambaConfig::output_init() const { return rescale ? backbone.rescaled(inner()) : Init::normal(backbone.initializer_range); }

QkvConfig QkvConfig::read(ConfigReader& config, const BackboneShape& backbone, const HeadShape::Shares& otherwise, bool conv) {
  return {backbone, HeadShape::of_model_width(config, backbone, otherwise), ShortConvConfig::read(config, conv)};
}

QkvConfig QkvConfig::read(ConfigReader& config, const BackboneShape& backbone, const HeadShape::Widths& otherwise, bool conv) {
  return {backbone, HeadShape::of_head_dim(config, otherwise), ShortConvConfig::read(config, conv)};
}

DeltaConfig DeltaConfig::read(ConfigReader& config, const BackboneShape& backbone, const HeadShape::Widths& otherwise) {
  DeltaConfig c{QkvConfig::read(config, backbone, otherwise, true)};
  c.value_heads = config.integer("num_v_heads", c.shape.heads, 1, kMostHeads);
  if (c.value_heads % c.shape.heads != 0) config.fail("num_v_heads", "a multiple of num_heads = " + std::to_string(c.shape.heads));
  c.beta_factor = config.flag("allow_neg_eigval", false) ? 2 : 1;
  return c;
}

std::string output_norm_name(ConfigReader& config, bool gated) {
  return config.flag("fuse_norm", true) && gated ? "g_norm_swish_gate" : "g_norm";
}

ShortConvConfig ShortConvConfig::read(ConfigReader& config, bool otherwise) {
  ShortConvConfig c;
  c.on = config.flag("use_short_conv", otherwise);
  c.size = config.integer("conv_size", c.size, 1, 256);
  c.bias = config.flag("conv_bias", c.bias);
  return c;
}

ConvProjection::ConvProjection(const ParameterScope& scope, const std::string& letter, int64_t hidden_size, int64_t width,
                               const ShortConvConfig& conv, double deviation)
    : letter_(letter), width_(width), conv_(conv) {
  projection_ = scope.matrix(letter + "_proj.weight", {width, hidden_size}, Init::normal(deviation));
  if (!conv.on) return;
  weight_ = scope.other(letter + "_conv1d.weight", {width, 1, conv.size}, Init::normal(deviation), true);
  if (conv.bias) bias_ = scope.other(letter + "_conv1d.bias", {width}, Init::zeros());
}

std::optional<StateSpec> ConvProjection::tail() const {
  if (!conv_.on) return std::nullopt;
  return StateSpec{.name = letter_ + "_conv", .shape = {conv_.size - 1, width_}, .memory = false};
}

at::Tensor ConvProjection::finish(Call& call, const at::Tensor& projected, bool silu) const {
  const at::Tensor y = conv_.on ? call.short_conv(projected, weight_, conv_.bias ? std::optional(bias_) : std::nullopt, part_) : projected;
  return silu ? ops::silu(y) : y;
}

void QkvMixer::add_qkv(const ParameterScope& scope, const QkvConfig& config) {
  const auto& [H, G, K, V] = config.shape;
  add_qkv(scope, config, {H * K, G * K, G * V});
}

void QkvMixer::add_qkv(const ParameterScope& scope, const DeltaConfig& config) {
  const HeadShape& s = config.shape;
  add_qkv(scope, config, {s.heads * s.K, s.heads * s.K, config.value_heads * s.V});
}

void QkvMixer::add_qkv(const ParameterScope& scope, const QkvConfig& config, const std::array<int64_t, 3>& widths) {
  const char* letters[] = {"q", "k", "v"};
  const BackboneShape& backbone = config.backbone;
  for (size_t i = 0; i < qkv_.size(); ++i) {
    qkv_[i] = ConvProjection(scope, letters[i], backbone.hidden_size, widths[i], config.conv, backbone.initializer_range);
    if (std::optional<StateSpec> tail = qkv_[i].tail()) qkv_[i].place(keep(std::move(*tail)));
  }
}

SlotMemory QkvMixer::keep_slots(const HeadShape& shape, int64_t slots) {
  return {keep_memory({shape.heads, shape.K, slots}, "k"), keep_memory({shape.heads, slots, shape.V}, "v")};
}

QkvMixer::Qkv QkvMixer::project(Call& call, const std::array<bool, 3>& silu, const std::vector<Call::Projection>& others,
                                Call::When when) const {
  std::vector<Call::Projection> all;
  for (const ConvProjection& p : qkv_) all.emplace_back(p.projection());
  all.insert(all.end(), others.begin(), others.end());
  Call::Projections y = call.project(all, when);
  std::array<at::Tensor, 3> done;
  for (size_t i = 0; i < qkv_.size(); ++i) done[i] = qkv_[i].finish(call, y[qkv_[i].projection()], silu[i]);
  return {done[0], done[1], done[2], std::move(y)};
}

at::Tensor SlotMemory::read(Call& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& s,
                            const at::Tensor& log_alpha, double scale, const at::Tensor& rescale, const at::Tensor& hidden) const {
  ops::RecurrenceOptions options;
  options.scale = scale;
  const at::Tensor writes = s.to(k.scalar_type());
  at::Tensor logits = call.recurrence("column_gated_la", keys, {.q = q, .k = k, .v = writes, .log_alpha = log_alpha}, options)
                          .to(at::promote_types(k.scalar_type(), at::kFloat));
  if (rescale.defined()) logits = logits * rescale;
  if (hidden.defined()) logits = logits + hidden;
  at::Tensor weights = at::softmax(logits, -1);
  if (rescale.defined()) weights = weights * rescale;
  options.scale = 1;
  return call.recurrence("row_gated_la", values, {.q = weights.to(v.scalar_type()), .k = writes, .v = v, .log_alpha = log_alpha}, options);
}

at::Tensor gated_norm(const at::Tensor& o, const at::Tensor& weight, double eps, const at::Tensor& gate, bool sigmoid) {
  if (sigmoid) return ops::gated_rms_norm(o, weight, eps, gate);
  return ops::rms_norm(o, weight, eps) * ops::silu(gate);
}

void fla_bookkeeping(ConfigReader& config) {
  config.bookkeeping({"attn_mode", "share_conv_kernel"});
  config.only("elementwise_affine", true);
}

double linear_attention_flops(int64_t heads, int64_t K, int64_t V) {
  const auto k = static_cast<double>(K), v = static_cast<double>(V);
  return 2.0 * static_cast<double>(heads) * (kChunk * (k + v) + 2 * k * v);
}

double delta_rule_flops(int64_t heads, int64_t K, int64_t V) {
  const auto k = static_cast<double>(K), v = static_cast<double>(V);
  return 2.0 * static_cast<double>(heads) *
         (kChunk * (3 * k + 2 * v) + kChunk * kChunk / 3 + 3 * k * v);  // WY form: K K^T, its inverse, W, U
}

}  // namespace cyfa
