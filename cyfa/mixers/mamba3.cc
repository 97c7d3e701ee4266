#include "cyfa/mixers/mamba3.h"

#include <numbers>

#include "cyfa/mixers/parts.h"

namespace cyfa {
namespace {

struct Config : MambaConfig {
  int64_t rank = 1;  // mimo_rank if is_mimo
  bool mimo = false;
  int64_t angles = 32;  // rotated pairs: state_size * rope_fraction / 2
  double A_floor = 1e-4;
};

// The recurrence is S_t = a_t S_{t-1} + sum over r of a_t (1 - lambda_t) dt_t k_{t-1,r} v_{t-1,r}^T + c_t k_{t,r} v_{t,r}^T, with
// c = lambda dt.
class Mamba3 final : public Mixer {
 public:
  Mamba3(const Config& c, const ParameterScope& scope) : c_(c) {
    const int64_t D = c.backbone.hidden_size, I = c.inner(), H = c.heads, P = c.P, G = c.groups, R = c.rank;
    const Init normal = Init::normal(c.backbone.initializer_range);
    widths_ = {I, I, R * G * c.N, R * G * c.N, H, H, H, c.angles};
    const int64_t all = c10::sum_integers(widths_);
    in_proj_ = scope.matrix("in_proj.weight", {all, D}, normal);
    if (c.bias) in_bias_ = scope.other("in_proj.bias", {all}, Init::zeros());
    dt_bias_ = scope.other("dt_bias", {H}, Init::time_step());
    B_bias_ = scope.other("B_bias", {H, R, c.N}, Init::ones(), true);
    C_bias_ = scope.other("C_bias", {H, R, c.N}, Init::ones(), true);
    B_norm_ = scope.other("B_norm.weight", {c.N}, Init::ones());
    C_norm_ = scope.other("C_norm.weight", {c.N}, Init::ones());
    if (c.mimo) {
      const double share = 1 / static_cast<double>(R);
      mimo_x_ = scope.other("mimo_x", {H, R, P}, Init::constant(share), true);
      mimo_z_ = scope.other("mimo_z", {H, R, P}, Init::ones(), true);
      mimo_o_ = scope.other("mimo_o", {H, R, P}, Init::constant(share), true);
    }
    D_ = scope.other("D", {H}, Init::ones());
    out_proj_ = scope.matrix("out_proj.weight", {D, I}, c.output_init());
    if (c.bias) out_bias_ = scope.other("out_proj.bias", {D}, Init::zeros());
    memory_ = keep_memory({H, c.N, P});
    angle_ = keep({.name = "angle", .shape = {H, c.angles}, .dtype = at::kDouble, .memory = false});
    last_k_ = keep({.name = "last_k", .shape = {R, H, c.N}, .memory = false});
    last_x_ = keep({.name = "last_x", .shape = {H, P}, .memory = false});
  }

  at::Tensor mix(Call& call) const override {
    const at::Tensor all = call.linear(call.x(), in_proj_, c_.bias ? std::optional(in_bias_) : std::nullopt);
    std::vector<ParameterId> weights = {dt_bias_, B_bias_, C_bias_, B_norm_, C_norm_, D_};
    if (c_.mimo) weights.insert(weights.end(), {mimo_x_, mimo_z_, mimo_o_});
    const at::Tensor o = call.recomputed(all, weights, [self = *this](Call& part, const at::Tensor& y) { return self.mixed(part, y); });
    return call.linear(o, out_proj_, c_.bias ? std::optional(out_bias_) : std::nullopt);
  }

  double flops_per_token() const override { return static_cast<double>(c_.rank) * linear_attention_flops(c_.heads, c_.N, c_.P); }

 private:
  // What lies between the projections: keys and queries of every head and rank, which take 50 times the memory of `all`.
  at::Tensor mixed(Call& call, const at::Tensor& all) const {
    const int64_t H = c_.heads, R = c_.rank, N = c_.N, P = c_.P;
    const auto [z, x, B, C, time_step, A, trap, turns] = split<8>(all, widths_);
    Tokens t;
    t.dt = softplus_gate(time_step, call[dt_bias_]);
    t.log_alpha = t.dt * -softplus_gate(A, at::zeros_like(call[dt_bias_])).clamp_min(c_.A_floor);
    const at::Tensor lambda = ops::sigmoid_gate(trap);
    t.own = lambda * t.dt;
    t.next = (1 - lambda) * t.dt;
    const at::Tensor angle = accumulate(call, (tanh_gate(turns).unsqueeze(-2) * t.dt.unsqueeze(-1)).to(at::kDouble) * std::numbers::pi);
    const auto by = turn(angle, at::promote_types(all.scalar_type(), at::kFloat));
    t.k = turned(call, B, B_norm_, B_bias_, by);
    t.q = turned(call, C, C_norm_, C_bias_, by);
    t.x = split_heads(x, H);
    t.v = ranks(call, t.x, mimo_x_);
    const at::Tensor S = call.is_step() ? step_memory(call, t) : read_memory(call, t);  // [.., R, H, P]
    const at::Tensor skipped = S + t.v * call[D_].to(S.scalar_type()).view({H, 1});
    const at::Tensor gated = ops::swiglu(ranks(call, split_heads(z, H), mimo_z_), skipped);
    const at::Tensor o = c_.mimo ? (gated * by_rank(call, mimo_o_, gated)).sum(-3) : gated.squeeze(-3);
    call.after(last_k_, call.last(t.k.flatten(-3), last_k_).view({-1, R, H, N}));
    call.after(last_x_, call.last(t.x.flatten(-2), last_x_).view({-1, H, P}));
    return join_heads(o).to(all.scalar_type());
  }

  // Per token: q and k [.., R, H, N], v [.., R, H, P], x [.., H, P], the others [.., H]. `own` is c and `next` is (1 - lambda) dt.
  struct Tokens {
    at::Tensor q, k, v, x, dt, log_alpha, own, next;
  };

  at::Tensor by_rank(Call& call, ParameterId id, const at::Tensor& like) const {
    return call[id].transpose(0, 1).to(like.scalar_type());
  }  // [R, H, ..]

  // Expands x [.., H, P] to all ranks, [.., R, H, P].
  at::Tensor ranks(Call& call, const at::Tensor& x, ParameterId projection) const {
    return c_.mimo ? x.unsqueeze(-3) * by_rank(call, projection, x) : x.unsqueeze(-3);
  }

  // cos and sin of angles [.., H, angles], padded to all N / 2 pairs, [.., 1, H, N / 2]. Pairs without an angle are not rotated.
  std::pair<at::Tensor, at::Tensor> turn(const at::Tensor& angle, at::ScalarType type) const {
    const auto all = [&](const at::Tensor& x, double rest) {
      return at::constant_pad_nd(x.to(type), {0, c_.N / 2 - c_.angles}, rest).unsqueeze(-3);
    };
    return {all(at::cos(angle), 1), all(at::sin(angle), 0)};
  }

  // Applies the norm, the bias per head and rank, and the rotation to B or C [.., R * G * N]. SISO rotates adjacent elements (2 i, 2 i +
  // 1); MIMO rotates pairs (i, i + N / 2).
  at::Tensor turned(Call& call, const at::Tensor& x, ParameterId norm, ParameterId bias,
                    const std::pair<at::Tensor, at::Tensor>& by) const {
    const at::Tensor normed = ops::rms_norm(split_heads(split_heads(x, c_.rank), c_.groups), call[norm], kNormEps);  // [.., R, G, N]
    const at::Tensor y = (c_.groups == 1 ? normed : repeat_heads(normed, c_.heads / c_.groups)) + by_rank(call, bias, normed);
    const int64_t pairs = c_.N / 2, axis = c_.mimo ? -2 : -1;
    std::vector<int64_t> shape = y.sizes().vec();
    shape.back() = c_.mimo ? 2 : pairs;
    shape.push_back(c_.mimo ? pairs : 2);
    const at::Tensor pair = y.reshape(shape), a = pair.select(axis, 0), b = pair.select(axis, 1);
    const auto& [cos, sin] = by;
    return at::stack({a * cos - b * sin, a * sin + b * cos}, axis).flatten(-2).to(y.scalar_type());
  }

  // Cumulative angles after each token, from the increments [.., H, angles]. The state is kept modulo 2 pi.
  at::Tensor accumulate(Call& call, const at::Tensor& increment) const {
    constexpr double kTurn = 2 * std::numbers::pi;
    const at::Tensor first = call.before(angle_);
    if (call.is_step()) {
      const at::Tensor now = (first + increment).remainder(kTurn);
      call.after(angle_, now);
      return now;
    }
    at::Tensor sum = increment.cumsum(1);
    if (call.cu_seqlens()) {
      const at::Tensor start = at::constant_pad_nd(sum, {0, 0, 0, 0, 1, 0}).squeeze(0).index_select(0, call.starts());
      sum = sum - (first.defined() ? start - first : start).repeat_interleave(call.lengths(), 0).unsqueeze(0);
    } else if (first.defined()) {
      sum = sum + first.unsqueeze(1);
    }
    call.after(angle_, call.last(sum.flatten(-2), angle_).remainder(kTurn).view({-1, c_.heads, c_.angles}));
    return sum;
  }

  // Forward. What token t reads from earlier tokens is computed by the op with all writes shifted by one token: position t holds the write
  // of token t - 1 with weight (c_{t-1} + (1 - lambda_t) dt_t) a_t. The token's own write is added to the output separately, and the last
  // token's own write is added to the final state.
  at::Tensor read_memory(Call& call, const Tokens& t) const {
    const int64_t B = t.q.size(0), T = t.q.size(1), H = c_.heads, R = c_.rank, N = c_.N, P = c_.P;
    const auto each_rank = [](const at::Tensor& x, at::ScalarType type) {
      return x.unsqueeze(-2).unsqueeze(-1).to(type);
    };  // [.., H] to [.., 1, H, 1]
    const at::Tensor k = call.preceding(t.k.flatten(-3), last_k_).view({B, T, R, H, N}).to(t.k.scalar_type());
    const at::Tensor x = call.preceding(t.x.flatten(-2), last_x_).view({B, T, H, P}).to(t.x.scalar_type());
    const at::Tensor weight = (call.preceding(t.own, std::nullopt) + t.next) * at::exp(t.log_alpha);
    const at::Tensor v = ranks(call, x, mimo_x_) * each_rank(weight, x.scalar_type());
    const at::Tensor first_rank = at::constant_pad_nd(t.log_alpha.unsqueeze(2), {0, 0, 0, R - 1}, 0);  // decay once per token
    ops::RecurrenceInputs in;
    in.q = t.q.reshape({B, T * R, H, N});
    in.k = k.reshape({B, T * R, H, N});
    in.v = v.reshape({B, T * R, H, P});
    in.log_alpha = first_rank.reshape({B, T * R, H});
    if (call.cu_seqlens()) in.cu_seqlens = *call.cu_seqlens() * R;
    const at::ScalarType type = at::promote_types(t.dt.scalar_type(), at::kFloat);
    if (call.before(memory_).defined()) in.initial_state = call.before(memory_).to(type);
    ops::RecurrenceOptions options;
    options.scale = 1;
    const ops::RecurrenceOutput out = ops::run_recurrence(ops::recurrence_of("scalar_gated_la"), in, options);
    // With ranks interleaved as tokens, rank r of a token sees only ranks <= r of the shifted write; the ranks > r are added here.
    const at::Tensor q = t.q.transpose(2, 3);  // [B, T, H, R, N]
    const auto read = [&](const at::Tensor& keys, const at::Tensor& values, const at::Tensor& mask) {
      const at::Tensor scores = at::matmul(q, keys.transpose(2, 3).transpose(-1, -2));
      return at::matmul(mask.defined() ? scores * mask : scores, values.transpose(2, 3)).transpose(2, 3);
    };
    const at::Tensor own = t.v * each_rank(t.own, t.v.scalar_type());
    at::Tensor o = out.o.view({B, T, R, H, P}) + read(t.k, own, {});
    if (R > 1) o = o + read(k, v, at::ones({R, R}, q.options()).triu_(1));
    const int64_t S = out.final_state.size(0);
    const at::Tensor last_k = call.last(t.k.flatten(-3), std::nullopt).view({S, R, H, N}).to(type);
    const at::Tensor last_v = call.last(own.flatten(-3), std::nullopt).view({S, R, H, P}).to(type);
    call.after(memory_, out.final_state + at::einsum("nrhk,nrhv->nhkv", {last_k, last_v}));
    return o;
  }

  // Decode step: writes the previous token, then the current one, one rank at a time; then reads. A zero key leaves the state unchanged.
  at::Tensor step_memory(Call& call, const Tokens& t) const {
    const int64_t R = c_.rank;
    ops::RecurrenceOptions options;
    options.scale = 1;
    const at::Tensor keep = at::zeros_like(t.log_alpha), nothing = at::zeros_like(t.k.select(1, 0));
    const at::Tensor before = call.before(last_k_).to(t.k.scalar_type()),
                     before_v = ranks(call, call.before(last_x_).to(t.x.scalar_type()), mimo_x_);
    const at::Tensor alpha = one_minus_exp(t.log_alpha);
    const at::Tensor by = t.next - t.next * alpha;
    const auto pass = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_alpha) {
      return call.recurrence("scalar_gated_la", memory_, {.q = q, .k = k, .v = v, .log_alpha = log_alpha}, options);
    };
    for (int64_t r = 0; r < R; ++r)
      pass(nothing, before.select(1, r), before_v.select(1, r) * by.unsqueeze(-1), r == 0 ? t.log_alpha : keep);
    for (int64_t r = 0; r < R; ++r) pass(nothing, t.k.select(1, r), t.v.select(1, r) * t.own.unsqueeze(-1), keep);
    std::vector<at::Tensor> o;
    for (int64_t r = 0; r < R; ++r) o.push_back(pass(t.q.select(1, r), nothing, at::zeros_like(t.x), keep));
    return at::stack(o, 1);
  }

  static constexpr double kNormEps = 1e-5;

  Config c_;
  std::vector<int64_t> widths_;
  ParameterId in_proj_ = 0, in_bias_ = 0, dt_bias_ = 0, B_bias_ = 0, C_bias_ = 0, B_norm_ = 0, C_norm_ = 0, mimo_x_ = 0, mimo_z_ = 0,
              mimo_o_ = 0, D_ = 0, out_proj_ = 0, out_bias_ = 0;
  size_t memory_ = 0, angle_ = 0, last_k_ = 0, last_x_ = 0;
};

}  // namespace

MixerFactory read_mamba3(ConfigReader& config, const BackboneShape& backbone) {
  Config c{MambaConfig::read(config, backbone)};
  if (c.N % 2 != 0 || c.N < 4) config.fail("state_size", "an even number of at least 4: rotations turn pairs");
  c.mimo = config.flag("is_mimo", c.mimo);
  const int64_t rank = config.integer("mimo_rank", 4, 1, 256);
  c.rank = c.mimo ? rank : 1;
  const double fraction = config.number("rope_fraction", 0.5, 0, 1);
  if (fraction != 0.5 && fraction != 1.0) config.fail("rope_fraction", "0.5 or 1");
  c.angles = static_cast<int64_t>(static_cast<double>(c.N) * fraction) / 2;
  c.A_floor = config.number("A_floor", c.A_floor, 0, 1);
  config.only("is_outproj_norm", false);
  return factory_of<Mamba3>(c);
}

}  // namespace cyfa
