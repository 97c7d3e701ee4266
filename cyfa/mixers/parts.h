// Parts that several mixers share: heads, convolved projections, rotary positions, gates, norms of an output. Each works on whole sequences
// ([B, T, ..]) and on steps ([B, ..]) alike, and in a step an element's bits do not depend on the rest of the batch.
#pragma once

#include <array>

#include "cyfa/mixers/call.h"
#include "cyfa/mixers/registry.h"

namespace cyfa {

// The last dimension in pieces of these widths, to be bound to names.
template <size_t N>
std::array<at::Tensor, N> split(const at::Tensor& x, at::IntArrayRef widths) {
  std::array<at::Tensor, N> pieces;
  const std::vector<at::Tensor> all = x.split_with_sizes(widths, -1);
  TORCH_CHECK(all.size() == N, "split: ", all.size(), " widths for ", N, " names");
  std::copy(all.begin(), all.end(), pieces.begin());
  return pieces;
}

// [.., H * X] to [.., H, X], and back.
at::Tensor split_heads(const at::Tensor& x, int64_t heads);
inline at::Tensor join_heads(const at::Tensor& x) { return x.flatten(-2); }
// [.., G, X] to [.., G * each, X]: head h takes what group h / each has.
at::Tensor repeat_heads(const at::Tensor& x, int64_t each);

// Rotary positions: pairs (i, i + X / 2) of x [.., H, X] turn by position * theta^(-2 i / X); positions [..].
at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, double theta = 10000);

at::Tensor log_sigmoid_gate(const at::Tensor& x);                       // log sigmoid(x), in fp32 or better
at::Tensor one_minus_exp(const at::Tensor& log_alpha);                  // 1 - exp(log_alpha), exact near 0
at::Tensor softplus_gate(const at::Tensor& x, const at::Tensor& bias);  // softplus(x + bias), x [.., H], bias [H]
at::Tensor exact_gelu(const at::Tensor& x);  // of the type of x
at::Tensor tanh_gate(const at::Tensor& x);  // in fp32 or better
at::Tensor l2_norm(const at::Tensor& x);    // x / sqrt(sum(x^2) + 1e-6) over the last dimension

// feature_map of q and k: one of the names that `read_feature_map` allows.
std::string read_feature_map(ConfigReader& config, const std::string& otherwise);
at::Tensor feature_map(const std::string& name, const at::Tensor& x);

// hidden_size * factor as a whole number of heads: the width of one. Config errors name the key.
int64_t head_width(ConfigReader& config, const char* key, double otherwise, int64_t hidden_size, int64_t heads);
// Heads that several of `heads` share: a divisor of it; absent, as many.
int64_t read_groups(ConfigReader& config, const char* key, int64_t heads);
int64_t read_groups(ConfigReader& config, const char* key, int64_t heads, int64_t otherwise);

// The heads of a mixer with q, k and v.
struct HeadShape {
  int64_t heads = 0;   // num_heads: of q
  int64_t groups = 0;  // num_kv_heads: of k and v, each shared by heads / groups; otherwise as many as heads
  int64_t K = 0, V = 0;

  // Widths as shares of the model's: hidden_size * expand_k / num_heads, hidden_size * expand_v / num_heads.
  struct Shares {
    int64_t heads;
    double expand_k, expand_v;
    bool grouped = true;  // num_kv_heads is a key
  };
  static HeadShape of_model_width(ConfigReader& config, const BackboneShape& backbone, const Shares& otherwise);

  // Widths of their own: head_dim * expand_k, head_dim * expand_v; `expand_k` 0: no such key, and K is head_dim.
  struct Widths {
    int64_t heads, head_dim;
    double expand_k, expand_v;
    bool truncated = false;  // a width that is no whole number is cut off, as the origin does; otherwise it is refused
  };
  static HeadShape of_head_dim(ConfigReader& config, const Widths& otherwise);

  int64_t each() const { return heads / groups; }
};
// What the configs of the Mamba family have in common: num_heads * head_dim = expand * hidden_size.
struct MambaConfig {
  BackboneShape backbone;
  int64_t heads = 0, P = 64, N = 128, groups = 1;  // num_heads, head_dim, state_size, n_groups
  bool bias = false;                               // use_bias
  bool rescale = true;                             // rescale_prenorm_residual

  static MambaConfig read(ConfigReader& config, const BackboneShape& backbone);
  int64_t inner() const { return heads * P; }
  // Of the projection back into the residual stream: the origin draws it by its width, and smaller the deeper the model is.
  Init output_init() const;
};
// What flash-linear-attention calls the norm of an output that a gate may follow: that depends on whether it fuses the two.
std::string output_norm_name(ConfigReader& config, bool gated);

// use_short_conv, conv_size, conv_bias.
struct ShortConvConfig {
  bool on = false;
  int64_t size = 4;
  bool bias = false;

  static ShortConvConfig read(ConfigReader& config, bool otherwise);
};

// What the configs of mixers with q, k and v have in common. Each adds its own keys.
struct QkvConfig {
  BackboneShape backbone;
  HeadShape shape;
  ShortConvConfig conv;

  // `conv`: whether there are convolutions where the config does not say.
  static QkvConfig read(ConfigReader& config, const BackboneShape& backbone, const HeadShape::Shares& otherwise, bool conv);
  static QkvConfig read(ConfigReader& config, const BackboneShape& backbone, const HeadShape::Widths& otherwise, bool conv);
  Init normal() const { return Init::normal(backbone.initializer_range); }
};
// Of the gated delta rules: value heads, of which several may share a key, and write strengths up to 2.
struct DeltaConfig : QkvConfig {
  int64_t value_heads = 0;  // num_v_heads: a multiple of num_heads, which is the default
  double beta_factor = 1;   // 2 where allow_neg_eigval

  static DeltaConfig read(ConfigReader& config, const BackboneShape& backbone, const HeadShape::Widths& otherwise);
  int64_t each() const { return value_heads / shape.heads; }
};

// Makes mixers of class M, which is constructed from a config and a scope.
template <class M, class Config>
MixerFactory factory_of(const Config& config) {
  return [config](const ParameterScope& scope) { return std::make_unique<M>(config, scope); };
}

// A projection of x and, where there is one, the convolution behind it: "q_proj.weight", "q_conv1d.weight".
class ConvProjection {
 public:
  ConvProjection() = default;
  ConvProjection(const ParameterScope& scope, const std::string& letter, int64_t hidden_size, int64_t width, const ShortConvConfig& conv,
                 double deviation);

  ParameterId projection() const { return projection_; }
  ParameterId weight() const { return weight_; }  // of the convolution, where there is one; bias() likewise
  ParameterId bias() const { return bias_; }
  int64_t width() const { return width_; }
  size_t part() const { return part_; }
  // Tail of the convolution that the mixer is to keep, if any; `place` says where it keeps it.
  std::optional<StateSpec> tail() const;
  void place(size_t part) { part_ = part; }
  // What follows the projection: the convolution. `silu` after it.
  at::Tensor finish(Call& call, const at::Tensor& projected, bool silu) const;

 private:
  std::string letter_;
  int64_t width_ = 0;
  ShortConvConfig conv_;
  ParameterId projection_ = 0, weight_ = 0, bias_ = 0;
  size_t part_ = 0;
};

// The two passes of a memory of M slots (eq:slot-two-pass): logits of the slots from the keys, a softmax, the values. Write weights s and
// gates log_alpha are [.., H, M]; states `keys` [H, K, M] and `values` [H, M, V]. `rescale` [.., H or 1, M], where given, multiplies what
// is read from a slot, and `hidden` is added to the logits.
struct SlotMemory {
  size_t keys = 0, values = 0;

  at::Tensor read(Call& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& s,
                  const at::Tensor& log_alpha, double scale, const at::Tensor& rescale = {}, const at::Tensor& hidden = {}) const;
};

// A mixer with queries, keys and values.
class QkvMixer : public Mixer {
 protected:
  // Declares projections and convolutions of q, k and v: of heads * K, groups * K and groups * V columns.
  void add_qkv(const ParameterScope& scope, const QkvConfig& config);
  void add_qkv(const ParameterScope& scope, const DeltaConfig& config);  // of heads * K, heads * K, value_heads * V

  // q, k and v behind their convolutions, and the other projections of x by their weights.
  struct Qkv {
    at::Tensor q, k, v;
    Call::Projections others;

    const at::Tensor& operator[](ParameterId weight) { return others[weight]; }
  };
  // `silu`: of q, k and v, after the convolution.
  Qkv project(Call& call, const std::array<bool, 3>& silu, const std::vector<Call::Projection>& others = {},
              Call::When when = Call::When::kNow) const;

  // Keeps the two states of a memory of `slots` slots.
  SlotMemory keep_slots(const HeadShape& shape, int64_t slots);

  const std::array<ConvProjection, 3>& qkv() const { return qkv_; }

 private:
  void add_qkv(const ParameterScope& scope, const QkvConfig& config, const std::array<int64_t, 3>& widths);

  std::array<ConvProjection, 3> qkv_;
};

// How an output leaves the heads: RMSNorm over a head, with or without a gate, by silu or sigmoid, of the same shape.
at::Tensor gated_norm(const at::Tensor& o, const at::Tensor& weight, double eps, const at::Tensor& gate, bool sigmoid);

// Keys of flash-linear-attention that change nothing here.
void fla_bookkeeping(ConfigReader& config);

// Multiplications and additions of a recurrence over a state [H, K, V], chunk-wise with chunks of 64 tokens, for one token.
double linear_attention_flops(int64_t heads, int64_t K, int64_t V);
double delta_rule_flops(int64_t heads, int64_t K, int64_t V);

}  // namespace cyfa
