// Building blocks shared by several mixers: head reshapes, convolved projections, rotary embeddings, gates, output norms. All work both on
// whole sequences ([B, T, ..]) and on decode steps ([B, ..]). In a step, each row's result is bitwise independent of the rest of the batch.
#pragma once

#include <array>

#include "cyfa/mixers/call.h"
#include "cyfa/mixers/registry.h"

namespace cyfa {

// Splits the last dimension into N pieces of these widths, for structured bindings.
template <size_t N>
std::array<at::Tensor, N> split(const at::Tensor& x, at::IntArrayRef widths) {
  std::array<at::Tensor, N> pieces;
  const std::vector<at::Tensor> all = x.split_with_sizes(widths, -1);
  TORCH_CHECK(all.size() == N, "split: ", all.size(), " widths for ", N, " names");
  std::copy(all.begin(), all.end(), pieces.begin());
  return pieces;
}

// Reshapes [.., H * X] to [.., H, X], and back.
at::Tensor split_heads(const at::Tensor& x, int64_t heads);
inline at::Tensor join_heads(const at::Tensor& x) { return x.flatten(-2); }
// Repeats groups for grouped heads, [.., G, X] to [.., G * each, X]: head h gets group h / each.
at::Tensor repeat_heads(const at::Tensor& x, int64_t each);

// Rotary embedding: rotates pairs (i, i + X / 2) of x [.., H, X] by position * theta^(-2 i / X); positions [..].
at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, double theta = 10000);

at::Tensor log_sigmoid_gate(const at::Tensor& x);                       // log sigmoid(x), in fp32 or better
at::Tensor one_minus_exp(const at::Tensor& log_alpha);                  // 1 - exp(log_alpha), accurate near 0
at::Tensor softplus_gate(const at::Tensor& x, const at::Tensor& bias);  // softplus(x + bias), x [.., H], bias [H]
at::Tensor exact_gelu(const at::Tensor& x);                             // GELU with erf, in the type of x
at::Tensor tanh_gate(const at::Tensor& x);                              // tanh(x), in fp32 or better
at::Tensor l2_norm(const at::Tensor& x);                                // x / sqrt(sum(x^2) + 1e-6) over the last dimension

// Gumbel(0, 1) noise of the shape, type and device of `like`; equal seeds give equal bits on the same kind of device.
at::Tensor gumbel_noise(const at::Tensor& like, uint64_t seed);

// Reads the key feature_map; feature_map() applies the named function to q or k.
std::string read_feature_map(ConfigReader& config, const std::string& otherwise);
at::Tensor feature_map(const std::string& name, const at::Tensor& x);

// The width of one head: hidden_size * factor / heads, where `key` holds the factor. Throws ConfigError if that is not an integer.
int64_t head_width(ConfigReader& config, const char* key, double otherwise, int64_t hidden_size, int64_t heads);
// The number of groups that share keys and values among `heads` heads, which it must divide: `absent` if the key is absent, `heads` if
// there is no such default or the key is null.
int64_t read_groups(ConfigReader& config, const char* key, int64_t heads, std::optional<int64_t> absent = std::nullopt);

// Number and widths of a mixer's heads.
struct HeadShape {
  int64_t heads = 0;     // num_heads: query heads
  int64_t groups = 0;    // num_kv_heads: key and value heads, each shared by heads / groups query heads; `heads` if the mixer has no groups
  int64_t K = 0, V = 0;  // widths of a key and of a value

  // Reads widths relative to the model's: hidden_size * expand_k / num_heads and hidden_size * expand_v / num_heads.
  struct Shares {
    int64_t heads;
    double expand_k, expand_v;
    bool grouped = true;  // the config has the key num_kv_heads
  };
  static HeadShape of_model_width(ConfigReader& config, const BackboneShape& backbone, const Shares& otherwise);

  // Reads widths relative to head_dim: head_dim * expand_k and head_dim * expand_v. With an `expand_k` of 0 there is no such key and K is
  // head_dim.
  struct Widths {
    int64_t heads, head_dim;
    double expand_k, expand_v;
    bool truncated = false;  // truncate a fractional width, as the original implementation does; otherwise it throws
  };
  static HeadShape of_head_dim(ConfigReader& config, const Widths& otherwise);

  int64_t each() const { return heads / groups; }  // query heads per group
};
// Config keys common to Mamba-2 and Mamba-3, with num_heads * head_dim = expand * hidden_size.
struct MambaConfig {
  BackboneShape backbone;
  int64_t heads = 0, P = 64, N = 128, groups = 1;  // num_heads, head_dim, state_size, n_groups
  bool bias = false;                               // use_bias
  bool rescale = true;                             // rescale_prenorm_residual

  static MambaConfig read(ConfigReader& config, const BackboneShape& backbone);
  int64_t inner() const { return heads * P; }
  Init output_init() const;  // of the output projection: BackboneShape::rescaled() with rescale_prenorm_residual
};
// The name of the output norm in flash-linear-attention checkpoints. It depends on whether the norm is fused with a gate (fuse_norm).
std::string output_norm_name(ConfigReader& config, bool gated);

// The keys of the short convolution: use_short_conv, conv_size, conv_bias.
struct ShortConvConfig {
  bool on = false;
  int64_t size = 4;
  bool bias = false;

  static ShortConvConfig read(ConfigReader& config, bool otherwise);
};

// Config keys common to all mixers with q, k and v. Each mixer adds its own.
struct QkvConfig {
  BackboneShape backbone;
  HeadShape shape;
  ShortConvConfig conv;

  // `otherwise` and `conv` are the defaults of the head shape and of use_short_conv.
  static QkvConfig read(ConfigReader& config, const BackboneShape& backbone, const HeadShape::Shares& otherwise, bool conv);
  static QkvConfig read(ConfigReader& config, const BackboneShape& backbone, const HeadShape::Widths& otherwise, bool conv);
  Init normal() const { return Init::normal(backbone.initializer_range); }
};
// Config of the gated delta rules: several value heads may share a key head, and write strengths may go up to 2.
struct DeltaConfig : QkvConfig {
  int64_t value_heads = 0;  // num_v_heads: a multiple of num_heads, which is the default
  double beta_factor = 1;   // factor on the write strength: 2 with allow_neg_eigval

  static DeltaConfig read(ConfigReader& config, const BackboneShape& backbone, const HeadShape::Widths& otherwise);
  int64_t each() const { return value_heads / shape.heads; }  // value heads per key head
};

// A factory for mixers of class M, which is constructible from a config and a scope.
template <class M, class Config>
MixerFactory factory_of(const Config& config) {
  return [config](const ParameterScope& scope) { return std::make_unique<M>(config, scope); };
}

// A projection of x, optionally followed by a short convolution: "q_proj.weight", "q_conv1d.weight".
class ConvProjection {
 public:
  ConvProjection() = default;
  ConvProjection(const ParameterScope& scope, const std::string& letter, int64_t hidden_size, int64_t width, const ShortConvConfig& conv,
                 double deviation);

  ParameterId projection() const { return projection_; }
  ParameterId weight() const { return weight_; }  // of the convolution, if there is one; bias() likewise
  ParameterId bias() const { return bias_; }
  int64_t width() const { return width_; }
  size_t part() const { return part_; }  // index of the convolution's state
  // The convolution's state, if there is one. The mixer adds it to its own states and passes its index to place().
  std::optional<StateSpec> tail() const;
  void place(size_t part) { part_ = part; }
  // Applies the convolution to the projection's result, then SiLU if `silu`.
  at::Tensor finish(Call& call, const at::Tensor& projected, bool silu) const;

 private:
  std::string letter_;
  int64_t width_ = 0;
  ShortConvConfig conv_;
  ParameterId projection_ = 0, weight_ = 0, bias_ = 0;
  size_t part_ = 0;
};

// Two-pass slot attention (eq:slot-two-pass): slot logits from the key state, a softmax, then a read of the value state. `keys` [H, K, M]
// and `values` [H, M, V] are indices of states.
struct SlotMemory {
  size_t keys = 0, values = 0;

  // Writes k and v with weights `s` and forget gates `log_alpha`, both [.., H, M], and returns what q reads. If defined, `rescale`
  // [.., H or 1, M] multiplies both the logits and the values read from each slot, and `hidden` is added to the logits (a mask).
  at::Tensor read(Call& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& s,
                  const at::Tensor& log_alpha, double scale, const at::Tensor& rescale = {}, const at::Tensor& hidden = {}) const;
};

// Base class of mixers with queries, keys and values.
class QkvMixer : public Mixer {
 protected:
  // Declares the projections and convolutions of q, k and v, with widths heads * K, groups * K and groups * V.
  void add_qkv(const ParameterScope& scope, const QkvConfig& config);
  void add_qkv(const ParameterScope& scope, const DeltaConfig& config);  // widths heads * K, heads * K and value_heads * V

  // q, k and v after their convolutions, and the other projections of x by weight.
  struct Qkv {
    at::Tensor q, k, v;
    Call::Projections others;

    const at::Tensor& operator[](ParameterId weight) { return others[weight]; }
  };
  // Projects x. `silu` says for each of q, k and v whether SiLU follows the convolution; `others` and `when` as in Call::project().
  Qkv project(Call& call, const std::array<bool, 3>& silu, const std::vector<Call::Projection>& others = {},
              Call::When when = Call::When::kNow) const;

  // Declares the two states of a slot memory with `slots` slots.
  SlotMemory keep_slots(const HeadShape& shape, int64_t slots);

  const std::array<ConvProjection, 3>& qkv() const { return qkv_; }

 private:
  void add_qkv(const ParameterScope& scope, const QkvConfig& config, const std::array<int64_t, 3>& widths);

  std::array<ConvProjection, 3> qkv_;
};

// Per-head RMSNorm of o, times sigmoid(gate) or silu(gate); the gate has the shape of o.
at::Tensor gated_norm(const at::Tensor& o, const at::Tensor& weight, double eps, const at::Tensor& gate, bool sigmoid);

// Declares keys of flash-linear-attention configs that have no effect here or only one supported value.
void fla_bookkeeping(ConfigReader& config);

// FLOPs per token of a chunk-wise recurrence with state [H, K, V] and chunks of 64 tokens.
double linear_attention_flops(int64_t heads, int64_t K, int64_t V);
double delta_rule_flops(int64_t heads, int64_t K, int64_t V);

}  // namespace cyfa
