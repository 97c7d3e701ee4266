// Training on Hopper with matrices in bf16. Once per step, all fused matrices are converted to bf16 in one array. Their gradients are
// accumulated in fp32 in a second array, of which the parameters' grad() are views. All other parameters are handled as in the plain model:
// differentiable casts, gradients by autograd.
#include <set>
#include <utility>

#include "cyfa/engine/sm90/sm90.h"
#include "cyfa/engine/sm90/train_ops.h"
#include "cyfa/mixers/call.h"
#include "cyfa/model/recompute.h"
#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/cross_entropy.h"

namespace cyfa::fused {
namespace {

// A layer with its fused weights.
struct TrainLayer {
  std::shared_ptr<const Block> block;
  ParameterId first = 0;
  const CyclicFlowSpec* spec = nullptr;  // null if the mixer has no fused kernels
  FlowWeights flow;
  Accumulated gate_bias, o_norm, o_proj;
  Accumulated mixer_norm, mlp_norm, gate_and_up, down;
};

// The fused weights of a model and their gradients, in two arrays. First add all members, then call allocate(), which sets their tensors.
class Arena {
 public:
  explicit Arena(CausalLM& model) : model_(model), grads_(model.parameters().size()) {}

  // Adds a single parameter.
  void add(ParameterId id, Accumulated* to) {
    const std::vector<int64_t>& shape = model_.table().specs()[id].shape;
    const bool matrix = model_.table().specs()[id].role == Role::kMatrix;
    entries_.push_back({{{id, 0}}, matrix ? std::vector<int64_t>{filled(shape[0], kRows), shape[1]} : shape, matrix, to});
  }
  // Adds several matrices fused along their rows, each with its first row.
  void add(std::vector<std::pair<ParameterId, int64_t>> members, int64_t rows, Accumulated* to) {
    const int64_t width = model_.table().specs()[members[0].first].shape[1];
    entries_.push_back({std::move(members), {filled(rows, kRows), width}, true, to});
  }

  void allocate() {
    int64_t copies = 0, grads = 0;
    for (const Entry& e : entries_) {
      if (e.matrix) copies += filled(e.numel(), kElements);
      grads += filled(e.numel(), kElements);
    }
    const auto options = at::TensorOptions(model_.device());
    copies_ = at::zeros({copies}, options.dtype(at::kBFloat16));
    sums_ = at::zeros({grads}, options.dtype(at::kFloat));
    copies = grads = 0;
    for (const Entry& e : entries_) {
      e.to->grad = sums_.narrow(0, std::exchange(grads, grads + filled(e.numel(), kElements)), e.numel()).view(e.shape);
      if (!e.matrix) {
        const ParameterId id = e.members[0].first;
        grads_[id] = e.to->grad;
        e.to->value = model_.parameters()[id].detach();
        continue;
      }
      e.to->value = copies_.narrow(0, std::exchange(copies, copies + filled(e.numel(), kElements)), e.numel()).view(e.shape);
      for (const auto& [id, row] : e.members) {
        const int64_t rows = model_.table().specs()[id].shape[0];
        at::Tensor& p = model_.parameters()[id];
        const at::Tensor value = e.to->value.narrow(0, row, rows);
        grads_[id] = e.to->grad.narrow(0, row, rows);
        if (p.scalar_type() == at::kBFloat16) {  // moves into the array, and needs no conversion in a step
          value.copy_(p.detach());
          p.set_data(value);
          continue;
        }
        from_.push_back(p.detach());
        to_.push_back(value);
      }
    }
  }

  // Converts the members' current values and zeroes their gradients. Returns the other parameters as differentiable casts; members are
  // undefined there.
  Weights begin_step() {
    sums_.zero_();
    if (!to_.empty()) at::_foreach_copy_(to_, from_);
    std::vector<at::Tensor> tensors;
    for (size_t id = 0; id < grads_.size(); ++id) {
      at::Tensor& p = model_.parameters()[id];
      if (grads_[id].defined()) {
        p.mutable_grad() = grads_[id];
        tensors.emplace_back();
      } else {
        tensors.push_back(p.to(model_.table().specs()[id].role == Role::kMatrix ? at::kBFloat16 : at::kFloat));
      }
    }
    return Weights(std::move(tensors));
  }

 private:
  static constexpr int64_t kRows = 8;       // the number of rows is padded to a multiple of this, which aligns the rows of the product
  static constexpr int64_t kElements = 64;  // alignment of a weight, in elements

  static int64_t filled(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

  struct Entry {
    std::vector<std::pair<ParameterId, int64_t>> members;
    std::vector<int64_t> shape;
    bool matrix;
    Accumulated* to;

    int64_t numel() const { return c10::multiply_integers(shape); }
  };

  CausalLM& model_;
  std::vector<Entry> entries_;
  at::Tensor copies_, sums_;
  std::vector<at::Tensor> from_, to_;  // the model's matrices and their copies
  std::vector<at::Tensor> grads_;      // by ParameterId; undefined for parameters whose gradients come from autograd
};

// The residual stream x + plus, with the addition deferred to the next norm. With an undefined `plus` it is x.
struct Residual {
  at::Tensor x, plus;

  at::Tensor sum() const { return plus.defined() ? x + plus : x; }
  at::Tensor normed(const Accumulated& weight, double eps) {
    const AddedNorm out = add_rms_norm(x, plus, weight, eps);
    *this = {out.sum, {}};
    return out.normed;
  }
};

// No gradient comes from a final state, so forward computes none.
at::Tensor mix_flow(const TrainLayer& layer, const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens) {
  const CyclicFlowSpec& spec = *layer.spec;
  const int64_t B = x.size(0), T = x.size(1), H = spec.config.shape.heads;
  const FlowProjections p = flow_projections(x, layer.flow, cu_seqlens);
  ops::CyclicFlowInputs in;
  in.q = p.q.view({B, T, H, spec.config.shape.K});
  in.k = p.k.view({B, T, H, spec.config.shape.K});
  in.v = p.v.view({B, T, H, spec.config.shape.V});
  in.log_alpha = p.log_alpha;
  in.delta = p.delta;
  in.beta = p.beta;
  in.readout = spec.readout_matrices(w, x.device());
  if (spec.config.qk_norm) {
    in.q_norm_weight = w[spec.q_norm];
    in.k_norm_weight = w[spec.k_norm];
  }
  in.cu_seqlens = cu_seqlens;
  ops::CyclicFlowOptions options;
  options.norm_eps = spec.config.backbone.norm_eps;
  options.final_state = false;
  const at::Tensor o = ops::cyclic_flow(in, options).o;
  const at::Tensor gated = gated_rms_norm(o, layer.o_norm, spec.output_eps(), p.gate.view(o.sizes()), layer.gate_bias.grad);
  return linear(gated.flatten(-2), layer.o_proj);
}

Residual run_block(const TrainLayer& layer, const Weights& w, Residual residual, const std::optional<at::Tensor>& cu_seqlens) {
  const ops::WithoutAutocast plain_types;  // also when it is run again in backward
  const double eps = layer.block->norm_eps();
  const at::Tensor normed = residual.normed(layer.mixer_norm, eps);
  if (layer.spec != nullptr) {
    residual.plus = mix_flow(layer, w, normed, cu_seqlens);
  } else {
    Call call(w, normed, cu_seqlens, nullptr, layer.block->mixer().state().size());
    residual.plus = layer.block->mixer().mix(call);
  }
  if (!layer.block->has_mlp()) return residual;
  const at::Tensor in = residual.normed(layer.mlp_norm, eps);
  residual.plus = linear(swiglu_halves(linear(in, layer.gate_and_up)), layer.down);
  return residual;
}

class Sm90Training final : public TrainEngine {
 public:
  Sm90Training(CausalLM& model, bool recompute) : model_(model), recompute_(recompute), arena_(model) {
    for (const CausalLM::Layer& layer : model.layers()) {
      auto t = std::make_shared<TrainLayer>();
      t->block = layer.block;
      t->first = layer.first;
      add(*t);
      layers_.push_back(std::move(t));
    }
    arena_.add(model.norm_weight(), &norm_);
    if (!model.config().tied_head && columns_refusal("vocab_size", model.config().vocab_size).empty()) {
      arena_.add(model.head_weight(), &head_);
    }
    arena_.allocate();
    for (const auto& layer : layers_) layer->flow.gate_bias = layer->gate_bias.value;
  }

  std::string name() const override { return "sm90"; }
  std::vector<std::string> notes() const override { return {notes_.begin(), notes_.end()}; }
  void begin_step(std::optional<uint64_t> noise) override {
    weights_ = arena_.begin_step();
    noise_ = noise;
    losses_ = 0;
  }

  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets, const std::optional<at::Tensor>& cu_seqlens) override {
    const ops::WithoutAutocast plain_types;
    if (inputs.sizes() != targets.sizes()) ops::check::fail("model", "targets have another shape than the inputs");
    const at::Tensor ids = cu_seqlens ? inputs.reshape({1, -1}) : inputs;
    ops::check::shape("model", "ids", ids, {{"B", -1}, {"T", -1}});
    const Weights all = noise_ ? weights_.with_noise(mixed_seed(*noise_, losses_++)) : weights_;
    Residual residual = {model_.embed(all, ids), {}};
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Weights w = model_.layers()[i].weights(all);
      if (recompute_ && at::GradMode::is_enabled()) {
        const auto body = [layer = layers_[i], w, cu_seqlens](const at::Tensor& x, MixerState*) {
          return run_block(*layer, w, {x, {}}, cu_seqlens).sum();
        };
        MixerState none;
        residual = {recomputed(residual.sum(), body, &none), {}};
      } else {
        residual = run_block(*layers_[i], w, residual, cu_seqlens);
      }
    }
    const at::Tensor normed = residual.normed(norm_, model_.config().backbone.norm_eps).flatten(0, 1);
    const at::Tensor wanted = targets.reshape({-1}).to(at::kLong).to(normed.device());
    if (head_.defined()) return linear_cross_entropy(normed, head_, wanted);
    return ops::linear_cross_entropy(normed, weights_[model_.head_weight()].to(normed.scalar_type()), wanted);
  }

 private:
  void add(TrainLayer& t) {
    const Block::Ids& ids = t.block->ids();
    const auto alone = [&](ParameterId id, Accumulated* to) { arena_.add(t.first + id, to); };
    alone(ids.mixer_norm, &t.mixer_norm);
    const CyclicFlowSpec* spec = cyclic_flow_spec(t.block->mixer());
    const std::string refusal = spec == nullptr ? "it is not CyFA" : flow_refusal(*spec);
    if (!refusal.empty()) notes_.insert("mixer without fused kernels: " + refusal);
    if (refusal.empty()) {
      t.spec = spec;
      t.flow.layout = layout_of(*spec);
      t.flow.clock_stop_gradient = spec->config.clock_stop_gradient;
      std::vector<std::pair<ParameterId, int64_t>> members;
      for (const auto& [id, row] : projection_members(*spec)) members.emplace_back(t.first + id, row);
      arena_.add(std::move(members), t.flow.layout.columns(), &t.flow.projection);
      for (size_t i = 0; i < 3; ++i) {
        alone(spec->qkv[i].weight(), &t.flow.conv[i]);
        if (spec->config.conv.bias) alone(spec->qkv[i].bias(), &t.flow.conv_bias[i]);
      }
      alone(spec->gate_second, &t.flow.gate_second);
      alone(spec->gate_bias, &t.gate_bias);
      alone(spec->dt_bias, &t.flow.dt_bias);
      alone(spec->A_log, &t.flow.A_log);
      alone(spec->b_bias, &t.flow.b_bias);
      alone(spec->d_bias, &t.flow.d_bias);
      alone(spec->o_norm, &t.o_norm);
      alone(spec->o_proj, &t.o_proj);
    }
    if (!t.block->has_mlp()) return;
    alone(ids.mlp_norm, &t.mlp_norm);
    const int64_t F = t.block->table().specs()[ids.gate].shape[0];
    arena_.add({{t.first + ids.gate, 0}, {t.first + ids.up, F}}, 2 * F, &t.gate_and_up);
    alone(ids.down, &t.down);
  }

  CausalLM& model_;
  bool recompute_;
  Arena arena_;
  std::vector<std::shared_ptr<TrainLayer>> layers_;
  Accumulated norm_, head_;
  std::set<std::string> notes_;
  Weights weights_;
  std::optional<uint64_t> noise_;
  uint64_t losses_ = 0;  // since begin_step()
};

}  // namespace

std::string train_refusal(const CausalLM& model, std::optional<at::ScalarType> compute) {
  if (const std::string reason = device_refusal(model.device()); !reason.empty()) return reason;
  for (ParameterId id = 0; id < model.parameters().size(); ++id) {
    const at::ScalarType type = model.parameters()[id].scalar_type();
    if (type == at::kFloat || (type == at::kBFloat16 && model.table().specs()[id].role == Role::kMatrix)) continue;
    return model.table().specs()[id].name + " is stored in " + c10::toString(type) + ", wanted fp32, or bf16 for a matrix";
  }
  if (compute != at::kBFloat16) return "matrices are computed in fp32, the kernels take bf16";
  const ModelConfig& c = model.config();
  if (const std::string reason = norm_refusal("hidden_size", c.backbone.hidden_size); !reason.empty()) return reason;
  return c.intermediate_size == 0 ? std::string() : columns_refusal("intermediate_size", c.intermediate_size);
}

std::unique_ptr<TrainEngine> prepare_training(CausalLM& model, std::optional<at::ScalarType>, bool recompute) {
  return std::make_unique<Sm90Training>(model, recompute);
}

}  // namespace cyfa::fused
