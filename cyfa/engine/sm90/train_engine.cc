// Training on Hopper with matrices in bf16, of which the layers' large products may be in fp8 (fp8_products.h). Once per step, all fused
// matrices are converted to bf16 in one array: in one launch, or layer by layer where parameters arrive from other ranks while forward
// runs. Their gradients are accumulated in fp32 in a second array, of which the parameters' grad() are views. All other parameters are
// handled as in the plain model: differentiable casts, gradients by autograd.
#include <set>
#include <utility>

#include "cyfa/engine/sm90/sm90.h"
#include "cyfa/engine/sm90/train_ops.h"
#include "cyfa/mixers/call.h"
#include "cyfa/mixers/cut.h"
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
  const CyclicFlowSpec* spec = nullptr;        // null if the mixer has no fused kernels
  std::vector<ParameterId> members;            // those in the arena, last first
  bool rows_again = false, mlp_again = false;  // TrainOptions::recompute_rows and recompute_mlp
  FlowWeights flow;
  Accumulated convolved;  // the rows of flow.projection whose products are convolved
  Accumulated gate_bias, o_norm, o_proj;
  Accumulated mixer_norm, mlp_norm, gate_and_up, down;
  std::vector<std::shared_ptr<Fp8Weight>> in_fp8;
};

// The fused weights of a model and their gradients, in two arrays. First add all members, then call allocate(), which sets their tensors.
class Arena {
 public:
  explicit Arena(CausalLM& model) : model_(model), grads_(model.parameters().size()), copy_of_(grads_.size()) {}

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
        } else {
          copy_of_[id] = value;
        }
      }
    }
  }

  // The members among `count` parameters from `first` on, last first.
  std::vector<ParameterId> members(ParameterId first, size_t count) const {
    std::vector<ParameterId> ids;
    for (ParameterId id = first + count; id-- > first;) {
      if (grads_[id].defined()) ids.push_back(id);
    }
    return ids;
  }

  // Zeroes the members' gradients. Returns the other parameters as differentiable casts; members are undefined there. With `arrive` each
  // of them is read at its first use, and members by read().
  Weights begin_step(const std::function<void(ParameterId)>& arrive) {
    sums_.zero_();
    std::vector<at::Tensor> others;
    for (size_t id = 0; id < grads_.size(); ++id) {
      at::Tensor& p = model_.parameters()[id];
      if (grads_[id].defined()) p.mutable_grad() = grads_[id];
      others.push_back(grads_[id].defined() ? at::Tensor() : p);
    }
    return converted_weights(model_.table().specs(), std::move(others), at::kBFloat16, arrive);
  }

  // Converts the current values of members.
  void read(const std::vector<ParameterId>& members) {
    std::vector<at::Tensor> to, from;
    for (const ParameterId id : members) {
      if (!copy_of_[id].defined()) continue;
      to.push_back(copy_of_[id]);
      from.push_back(model_.parameters()[id].detach());
    }
    if (!to.empty()) at::_foreach_copy_(to, from);
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
  // By ParameterId: the gradients, undefined where they come from autograd; the copies in bf16, undefined for all but members' matrices.
  std::vector<at::Tensor> grads_, copy_of_;
};

// The residual stream x + plus, with the addition deferred to the next norm. With an undefined `plus` it is x.
struct Residual {
  at::Tensor x, plus;

  at::Tensor sum() const { return plus.defined() ? x + plus : x; }
  at::Tensor normed(const Accumulated& weight, double eps, const std::function<void()>& completed = {}) {
    const AddedNorm out = add_rms_norm(x, plus, weight, eps, completed);
    *this = {out.sum, {}};
    return out.normed;
  }
};

Accumulated first_rows(const Accumulated& matrix, int64_t rows) {
  return {matrix.value.narrow(0, 0, rows), matrix.grad.narrow(0, 0, rows)};
}

// No gradient comes from a final state, so forward computes none.
at::Tensor mix_flow(const TrainLayer& layer, const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens,
                    const NormAgain& norm) {
  const CyclicFlowSpec& spec = *layer.spec;
  const int64_t B = x.size(0), T = x.size(1), H = spec.config.shape.heads;
  const SequenceCut* cut = w.cut();
  at::Tensor before;  // what the convolutions read of the rank before
  if (cut != nullptr) before = linear(tokens_before(*cut, x, spec.config.conv.size, 1), layer.convolved);
  const auto [p, convolved, gate] = flow_projections_again(x, layer.flow, cu_seqlens, before, norm);
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
  if (layer.rows_again) options.again = convolved;
  if (cut != nullptr) {
    const int64_t sequences = cu_seqlens->size(0) - 1;
    const FlowBefore state = flow_before(*cut, in, options.norm_eps, sequences);
    in.initial_state = {state.k, state.v, at::zeros({sequences, H}, state.k.options().dtype(at::kDouble))};
  }
  const at::Tensor o = ops::cyclic_flow(in, options).o;
  if (layer.rows_again) {
    return gated_rms_norm_linear(o, layer.o_norm, spec.output_eps(), p.gate.view(o.sizes()), gate, layer.gate_bias.grad, layer.o_proj);
  }
  const at::Tensor gated = gated_rms_norm(o, layer.o_norm, spec.output_eps(), p.gate.view(o.sizes()), layer.gate_bias.grad);
  return linear(gated.flatten(-2), layer.o_proj);
}

// Backward calls `completed` when it has written all gradients of the layer's fused weights.
Residual run_block(const TrainLayer& layer, const Weights& w, Residual residual, const std::optional<at::Tensor>& cu_seqlens,
                   const std::function<void()>& completed) {
  const ops::WithoutAutocast plain_types;  // also when it is run again in backward
  const double eps = layer.block->norm_eps();
  const at::Tensor normed = residual.normed(layer.mixer_norm, eps, completed);
  const auto again = [&](const Accumulated& norm) { return layer.rows_again ? NormAgain{residual.x, norm.value, eps} : NormAgain(); };
  if (layer.spec != nullptr) {
    residual.plus = mix_flow(layer, w, normed, cu_seqlens, again(layer.mixer_norm));
  } else {
    Call call(w, normed, cu_seqlens, nullptr, layer.block->mixer().state().size());
    residual.plus = layer.block->mixer().mix(call);
  }
  if (!layer.block->has_mlp()) return residual;
  const at::Tensor in = residual.normed(layer.mlp_norm, eps);
  if (layer.mlp_again) {
    residual.plus = mlp(in, layer.gate_and_up, layer.down, again(layer.mlp_norm));
    return residual;
  }
  const at::Tensor gate_and_up = linear(in, layer.gate_and_up, again(layer.mlp_norm));
  residual.plus = layer.rows_again ? swiglu_linear(gate_and_up, layer.down) : linear(swiglu_halves(gate_and_up), layer.down);
  return residual;
}

class Sm90Training final : public TrainEngine {
 public:
  Sm90Training(CausalLM& model, const TrainOptions& options) : model_(model), recompute_(options.recompute), arena_(model) {
    for (const CausalLM::Layer& layer : model.layers()) {
      auto t = std::make_shared<TrainLayer>();
      t->block = layer.block;
      t->first = layer.first;
      t->rows_again = options.recompute_rows;
      t->mlp_again = options.recompute_mlp;
      add(*t);
      layers_.push_back(std::move(t));
    }
    arena_.add(model.norm_weight(), &norm_);
    if (!model.config().tied_head && columns_refusal("vocab_size", model.config().vocab_size).empty()) {
      arena_.add(model.head_weight(), &head_);
    }
    arena_.allocate();
    for (const auto& layer : layers_) {
      if (options.compute == kFp8) put_in_fp8(*layer);
      layer->flow.gate_bias = layer->gate_bias.value;
      if (layer->spec != nullptr) layer->convolved = first_rows(layer->flow.projection, layer->flow.layout.gate());
      layer->members = arena_.members(layer->first, layer->block->table().specs().size());
    }
    for (const ParameterId id : {model.head_weight(), model.norm_weight()}) {
      for (const ParameterId member : arena_.members(id, 1)) last_members_.push_back(member);
    }
  }

  std::string name() const override { return "sm90"; }
  std::vector<std::string> notes() const override { return {notes_.begin(), notes_.end()}; }
  void begin_step(std::optional<uint64_t> noise) override {
    weights_ = arena_.begin_step(arrive_);
    if (!arrive_) {
      arena_.read(arena_.members(0, model_.parameters().size()));  // all in one launch
      for (const auto& layer : layers_) cast_weights(*layer);
    }
    read_ = 0;
    noise_ = noise;
    losses_ = 0;
  }
  bool read_late(std::function<void(ParameterId)> arrive) override {
    arrive_ = std::move(arrive);
    return true;
  }
  void complete_early(std::function<void(ParameterId)> completed) override { completed_ = std::move(completed); }
  void cut(std::shared_ptr<const SequenceCut> cut) override { cut_ = std::move(cut); }

  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets, const std::optional<at::Tensor>& cu_seqlens) override {
    const ops::WithoutAutocast plain_types;
    if (inputs.sizes() != targets.sizes()) ops::check::fail("model", "targets have another shape than the inputs");
    const at::Tensor ids = cu_seqlens ? inputs.reshape({1, -1}) : inputs;
    ops::check::shape("model", "ids", ids, {{"B", -1}, {"T", -1}});
    const Weights cut = cut_ ? weights_.with_cut(cut_) : weights_;
    const Weights all = noise_ ? cut.with_noise(mixed_seed(*noise_, losses_++)) : cut;
    Residual residual = {model_.embed(all, ids), {}};
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (read_part(i, layers_[i]->members)) cast_weights(*layers_[i]);
      const Weights w = model_.layers()[i].weights(all);
      const std::function<void()> completed = completing(layers_[i]->members);
      if (recompute_ && at::GradMode::is_enabled()) {
        const auto body = [layer = layers_[i], w, cu_seqlens, completed](const at::Tensor& x, MixerState*) {
          return run_block(*layer, w, {x, {}}, cu_seqlens, completed).sum();
        };
        MixerState none;
        residual = {recomputed(residual.sum(), body, &none), {}};
      } else {
        residual = run_block(*layers_[i], w, residual, cu_seqlens, completed);
      }
    }
    read_part(layers_.size(), last_members_);
    const at::Tensor normed = residual.normed(norm_, model_.config().backbone.norm_eps, completing(last_members_)).flatten(0, 1);
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

  // With read_late(): waits for the members of a part, which are the layers in order and then the norm and the head, and converts them,
  // when a step first uses them. Returns whether it did.
  bool read_part(size_t part, const std::vector<ParameterId>& members) {
    if (!arrive_ || part < read_) return false;
    for (auto id = members.rbegin(); id != members.rend(); ++id) arrive_(*id);
    arena_.read(members);
    read_ = part + 1;
    return true;
  }

  void put_in_fp8(TrainLayer& t) {
    const auto put = [&](Accumulated& w, int64_t rows, int64_t felt) {
      if (!w.defined()) return;
      if (const std::string refusal = fp8_refusal(rows, w.value.size(1)); !refusal.empty()) {
        notes_.insert("products in bf16: " + refusal);
        return;
      }
      t.in_fp8.push_back(w.fp8 = fp8_weight(w.value, rows, felt));
    };
    const auto put_whole = [&](Accumulated& w) {
      if (w.defined()) put(w, w.value.size(0), w.value.size(0));
    };
    // The gates a, b and d are computed in bf16. The clock is the sum of a gate over the whole sequence, so a systematic error in d, such
    // as that of a rounded weight, would grow with the length.
    put(t.flow.projection, t.flow.layout.a(), t.flow.felt_columns());
    put_whole(t.o_proj);
    put_whole(t.gate_and_up);
    put_whole(t.down);
  }

  static void cast_weights(TrainLayer& t) {
    for (const auto& w : t.in_fp8) w->begin_step();
  }

  // What backward calls when the gradients of these members are complete; it may outlive the engine.
  std::function<void()> completing(const std::vector<ParameterId>& members) const {
    if (!completed_) return {};
    return [completed = completed_, members] {
      for (const ParameterId id : members) completed(id);
    };
  }

  CausalLM& model_;
  bool recompute_;
  Arena arena_;
  std::vector<std::shared_ptr<TrainLayer>> layers_;
  Accumulated norm_, head_;
  std::vector<ParameterId> last_members_;  // the head and the norm
  std::function<void(ParameterId)> arrive_, completed_;
  size_t read_ = 0;  // parts that have been read since begin_step(), with read_late()
  std::set<std::string> notes_;
  Weights weights_;
  std::shared_ptr<const SequenceCut> cut_;
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
  if (compute != at::kBFloat16 && compute != kFp8) return "matrices are computed in fp32, the kernels take bf16";
  const ModelConfig& c = model.config();
  if (const std::string reason = norm_refusal("hidden_size", c.backbone.hidden_size); !reason.empty()) return reason;
  if (compute == kFp8 && c.backbone.hidden_size % 16 != 0) {
    return "hidden_size " + std::to_string(c.backbone.hidden_size) + " is not a multiple of 16, which products in fp8 need";
  }
  return c.intermediate_size == 0 ? std::string() : columns_refusal("intermediate_size", c.intermediate_size);
}

std::unique_ptr<TrainEngine> prepare_training(CausalLM& model, const TrainOptions& options) {
  return std::make_unique<Sm90Training>(model, options);
}

}  // namespace cyfa::fused
