// Decoding on Hopper. The weights are fused once, layer by layer, and the model's parameters become views of the fused matrices, so that
// memory holds only one copy. A step takes one of these paths, depending on the batch size: whole_step.h (one sequence, on request),
// small_batch.h, medium_batch.h, or matrix products by cuBLAS with everything else fused. Whole sequences take that of prefill.h.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <set>

#include "cyfa/engine/sm90/medium_batch.h"
#include "cyfa/engine/sm90/recorded_prefill.h"
#include "cyfa/engine/sm90/sm90.h"
#include "cyfa/engine/sm90/train_ops.h"
#include "cyfa/engine/sm90/whole_step.h"
#include "cyfa/mixers/call.h"
#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/common/in_place.h"
#include "cyfa/ops/common/sequences.h"

namespace cyfa::fused {
namespace {

// Copies parameters into fused matrices and replaces the originals by views of them.
class Fuser {
 public:
  explicit Fuser(CausalLM& model) : model_(model), views_(model.parameters().size()) {}

  // Fuses these parameters, each with its first row in the fused matrix. Rows that no member covers are zero.
  at::Tensor matrix(const std::vector<std::pair<ParameterId, int64_t>>& members, int64_t rows) {
    const at::Tensor& like = model_.parameters()[members[0].first];
    const at::Tensor fused = at::zeros({rows, like.size(1)}, like.options().dtype(at::kBFloat16));
    for (const auto& [id, row] : members) {
      at::Tensor& p = model_.parameters()[id];
      views_[id] = fused.narrow(0, row, p.size(0));
      views_[id].copy_(p);
      // A parameter that requires gradients, or is stored in another type, is not replaced.
      if (p.scalar_type() == at::kBFloat16 && !p.requires_grad()) p = views_[id];
    }
    return fused;
  }

  Weights weights() const {
    const Weights plain = model_.weights(at::kBFloat16);
    std::vector<at::Tensor> tensors;
    for (ParameterId id = 0; id < views_.size(); ++id) tensors.push_back(views_[id].defined() ? views_[id] : plain[id]);
    return Weights(std::move(tensors));
  }

 private:
  CausalLM& model_;
  std::vector<at::Tensor> views_;  // by ParameterId
};

class Sm90Step final : public StepEngine {
 public:
  Sm90Step(CausalLM& model, const StepOptions& options) : model_(model) {
    const at::NoGradGuard no_grad;
    Fuser fuser(model);
    for (const CausalLM::Layer& layer : model.layers()) {
      StepLayer s;
      s.block = layer.block.get();
      const Block::Ids& ids = layer.block->ids();
      const int64_t F = layer.block->table().specs()[ids.gate].shape[0];
      s.gate_and_up = fuser.matrix({{layer.first + ids.gate, 0}, {layer.first + ids.up, F}}, 2 * F);
      const CyclicFlowSpec* spec = cyclic_flow_spec(layer.block->mixer());
      s.refusal = spec == nullptr ? "it is not CyFA" : flow_refusal(*spec);
      if (s.refusal.empty()) {
        s.spec = spec;
        std::vector<std::pair<ParameterId, int64_t>> members;
        for (const auto& [id, row] : projection_members(*spec)) members.emplace_back(layer.first + id, row);
        s.flow.w.layout = layout_of(*spec);
        s.flow.w.projection.value = fuser.matrix(members, s.flow.w.layout.columns());
      }
      layers_.push_back(std::move(s));
    }
    weights_ = fuser.weights();
    for (size_t i = 0; i < layers_.size(); ++i) finish(layers_[i], model.layers()[i]);
    c10::cuda::CUDACachingAllocator::emptyCache();  // frees the original matrices
    prefill_.emplace(model, weights_, layers_);
    if (options.whole_step != WholeStepUse::kOff) whole_.emplace(model, weights_, layers_, options.whole_step == WholeStepUse::kTimed);
    if (options.record && prefill_->fused()) recorded_.emplace(model, *prefill_);
  }

  std::string name() const override { return "sm90"; }
  const CausalLM& model() const override { return model_; }
  const Weights& weights() const override { return weights_; }
  std::vector<std::string> notes() const override {
    std::vector<std::string> all(notes_.begin(), notes_.end());
    if (recorded_ && !recorded_->refusal().empty()) all.push_back("a prompt could not be recorded as a graph: " + recorded_->refusal());
    if (whole_) {
      for (const std::string& line : whole_->timings()) all.push_back(line);
    }
    return all;
  }
  void check() override {
    if (whole_) whole_->check();
  }
  WholeStep* whole() { return whole_ && whole_->refusal().empty() ? &*whole_ : nullptr; }

  std::string path(int64_t sequences) const override {
    if (sequences == 1 && whole_ && whole_->refusal().empty()) return "one launch";
    const at::Tensor x = at::empty({sequences, model_.config().backbone.hidden_size}, at::TensorOptions(at::kBFloat16).device(at::kMeta));
    if (small_batch_refusal(x) == nullptr) return "five launches a layer";
    if (medium_batch_refusal(x) == nullptr) return "six launches a layer";
    return "products by cuBLAS";
  }

  at::Tensor step(const at::Tensor& ids, ModelState& state) override {
    const ops::WithoutAutocast plain_types;
    const at::NoGradGuard no_grad;
    model_.check_step(ids, state);
    for (const MixerState& layer : state.layers) ops::mark_written("step", layer);
    if (state.sequences() == 1 && whole_) {
      const char* why = whole_->refusal().empty() ? whole_->state_refusal(state) : whole_->refusal().c_str();
      if (done("one launch", why)) return whole_->step(ids, state);
    }
    const at::Tensor x = model_.embed(weights_, ids);
    if (small_batch_refusal(x) == nullptr) return small_step(x, state);
    if (medium_batch_refusal(x) == nullptr) return medium_step(x, state);
    return large_step(x, state);
  }

  LmOutput forward(const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens, const ModelState* initial) override {
    const ops::WithoutAutocast plain_types;
    const at::NoGradGuard no_grad;
    ops::check::shape("model", "ids", ids, {{"B", -1}, {"T", -1}});
    model_.check_ids(ids);
    if (initial != nullptr) model_.check_state(*initial);
    const int64_t B = ids.size(0), T = ids.size(1);
    if (B * T == 0) return model_.forward(weights_, ids, cu_seqlens, initial);
    const std::vector<int64_t> offsets = offsets_of(ids, cu_seqlens);
    const auto N = static_cast<int64_t>(offsets.size()) - 1;
    if (initial != nullptr && initial->sequences() != N) {
      ops::check::fail("model",
                       "the initial state has " + std::to_string(initial->sequences()) + " sequences, wanted " + std::to_string(N));
    }
    const c10::cuda::CUDAGuard guard(model_.device());
    const bool fills_up = N == 1 && prefill_->fused();
    const RowTables tables(offsets, fills_up ? (T + kFill - 1) / kFill * kFill : B * T);
    const std::optional<ModelState> before = initial == nullptr ? std::nullopt : std::optional(prefill_->readable(*initial));
    ModelState after = prefill_->empty_state(N);
    const ModelState* start = before ? &*before : nullptr;
    at::Tensor hidden;
    if (!fills_up || !recorded_ || !recorded_->run(tables, ids, start, &hidden, &after)) {
      const auto options = at::TensorOptions(model_.device());
      const at::Tensor memory = at::empty({tables.bytes()}, options.dtype(at::kByte));
      const at::Tensor rows = at::empty({tables.rows()}, options.dtype(at::kLong));
      tables.copy_to(memory);
      put_ids(ids, rows);
      hidden = prefill_->run({tables, memory, rows, B, T, cu_seqlens, start}, after);
    }
    return {hidden.narrow(0, 0, B * T).view({B, T, -1}), std::move(after)};
  }

 private:
  static constexpr int64_t kFill = 128;  // a prompt is filled up to a multiple of this: a tile of the operator

  static std::vector<int64_t> offsets_of(const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens) {
    if (!cu_seqlens) return ops::batch_offsets(ids.size(0), ids.size(1));
    ops::check::borders("model", *cu_seqlens, ids.size(0), cu_seqlens->device());
    return ops::check::sequence_offsets("model", *cu_seqlens, ids.size(1));
  }

  double eps() const { return model_.config().backbone.norm_eps; }
  const at::Tensor& head() const { return weights_[model_.head_weight()]; }
  StepNorm final_norm() const { return {weights_[model_.norm_weight()], eps()}; }

  void finish(StepLayer& s, const CausalLM::Layer& layer) {
    s.w = layer.weights(weights_);
    const Block::Ids& ids = s.block->ids();
    s.mixer_norm = {s.w[ids.mixer_norm], eps()};
    s.mlp_norm = {s.w[ids.mlp_norm], eps()};
    s.down = s.w[ids.down];
    if (s.spec == nullptr) return;
    const CyclicFlowSpec& spec = *s.spec;
    const auto single = [&](ParameterId id) { return s.w[id].contiguous(); };
    FlowWeights& w = s.flow.w;
    w.gate_second.value = s.w[spec.gate_second];
    w.gate_bias = s.w[spec.gate_bias].to(at::kBFloat16);
    w.dt_bias.value = single(spec.dt_bias);
    w.A_log.value = single(spec.A_log);
    w.b_bias.value = single(spec.b_bias);
    w.d_bias.value = single(spec.d_bias);
    for (size_t i = 0; i < 3; ++i) {
      w.conv[i].value = single(spec.qkv[i].weight());
      if (spec.config.conv.bias) w.conv_bias[i].value = single(spec.qkv[i].bias());
    }
    s.flow.readout_table = ops::cyclic_flow_readout_table(spec.readout_matrices(s.w, model_.device()));
    if (spec.config.qk_norm) {
      s.flow.q_norm_weight = s.w[spec.q_norm];
      s.flow.k_norm_weight = s.w[spec.k_norm];
    }
    s.flow.norm_eps = spec.config.backbone.norm_eps;
    s.flow.o_norm = {s.w[spec.o_norm], spec.output_eps()};
    s.flow.o_proj = s.w[spec.o_proj];
  }

  static FlowStep flow_of(const StepLayer& layer, const MixerState& state) {
    FlowStep f = layer.flow;
    f.k = state[layer.spec->keys];
    f.v = state[layer.spec->values];
    f.clock = state[layer.spec->clock];
    for (size_t i = 0; i < 3; ++i) f.tails[i] = state[layer.spec->qkv[i].part()];
    return f;
  }

  // Whether a part of a layer has run. `why` is null, or the reason why its kernels could not run, which is noted once.
  bool done(const char* what, const char* why) {
    if (why == nullptr) return true;
    notes_.insert(std::string(what) + ": " + why);
    return false;
  }

  // The mixer alone, on normalized rows [B, D].
  at::Tensor mix(const StepLayer& layer, const at::Tensor& normed, MixerState& state) {
    if (layer.spec == nullptr) {
      done("mixer without fused kernels", layer.refusal.c_str());
      Call call(layer.w, normed, state);
      return layer.block->mixer().mix(call);
    }
    const FlowStep f = flow_of(layer, state);
    at::Tensor o;
    if (!done("mixer in one launch", flow_step_gated(normed, f, &o))) {
      const FlowProjections p = flow_projections_step(normed, f.w, f.tails);
      const int64_t B = normed.size(0), H = f.w.layout.heads;
      ops::CyclicFlowStepInputs in;
      in.q = p.q.view({B, H, -1});
      in.k = p.k.view({B, H, -1});
      in.v = p.v.view({B, H, -1});
      in.log_alpha = p.log_alpha;
      in.delta = p.delta;
      in.beta = p.beta;
      in.readout_table = f.readout_table;
      if (f.q_norm_weight.defined()) {
        in.q_norm_weight = f.q_norm_weight;
        in.k_norm_weight = f.k_norm_weight;
      }
      ops::CyclicFlowOptions options;
      options.norm_eps = f.norm_eps;
      const at::Tensor read = ops::cyclic_flow_step(in, {f.k, f.v, f.clock}, options);
      o = ops::gated_rms_norm(read, f.o_norm.weight, f.o_norm.eps, p.gate.view(read.sizes())).flatten(-2);
    }
    return at::linear(o, f.o_proj);
  }

  static at::Tensor normed(const at::Tensor& x, const StepNorm& norm) { return add_rms_norm(x, {}, {norm.weight, {}}, norm.eps).normed; }
  static at::Tensor swiglu(const StepLayer& layer, const at::Tensor& rows) {
    return at::linear(swiglu_halves(at::linear(rows, layer.gate_and_up)), layer.down);
  }

  // Each kernel adds its part to x. A part without kernels is computed separately and then added.
  at::Tensor small_step(at::Tensor x, ModelState& state) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const StepLayer& layer = layers_[i];
      const char* why = layer.spec == nullptr ? layer.refusal.c_str()
                                              : add_flow_step(x, layer.mixer_norm, flow_of(layer, state.layers[i]), layer.gate_and_up);
      if (!done("five launches, mixer", why)) x = x + mix(layer, normed(x, layer.mixer_norm), state.layers[i]);
      const at::Tensor ahead = i + 1 < layers_.size() ? layers_[i + 1].flow.w.projection.value : at::Tensor();
      why = add_swiglu_step(x, layer.mlp_norm, layer.gate_and_up, layer.down, ahead);
      if (!done("five launches, SwiGLU", why)) x = x + swiglu(layer, normed(x, layer.mlp_norm));
    }
    at::Tensor logits;
    if (done("five launches, head", head_step(x, final_norm(), head(), &logits))) return logits;
    return at::linear(normed(x, final_norm()), head()).to(at::kFloat);
  }

  at::Tensor medium_step(const at::Tensor& x, ModelState& state) {
    const auto plainly_normed = [](const NormedRows& rows, const StepNorm& norm) { return ops::rms_norm(rows.x, norm.weight, norm.eps); };
    NormedRows rows = begin_rows(x, layers_.front().mixer_norm);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const StepLayer& layer = layers_[i];
      const StepNorm next = i + 1 < layers_.size() ? layers_[i + 1].mixer_norm : final_norm();
      const char* why =
          layer.spec == nullptr ? layer.refusal.c_str() : add_flow_rows(rows, flow_of(layer, state.layers[i]), layer.mlp_norm);
      if (!done("six launches, mixer", why)) {
        const at::Tensor mixed = mix(layer, plainly_normed(rows, layer.mixer_norm), state.layers[i]);
        rows = begin_rows(rows.x + mixed, layer.mlp_norm);
      }
      why = add_swiglu_rows(rows, layer.gate_and_up, layer.down, next);
      if (!done("six launches, SwiGLU", why)) {
        rows = begin_rows(rows.x + swiglu(layer, plainly_normed(rows, layer.mlp_norm)), next);
      }
    }
    return at::linear(plainly_normed(rows, final_norm()), head()).to(at::kFloat);
  }

  // The residual addition is fused into the next norm.
  at::Tensor large_step(at::Tensor x, ModelState& state) {
    at::Tensor plus;
    const auto next_norm = [&](const StepNorm& norm) {
      const AddedNorm added = add_rms_norm(x, plus, {norm.weight, {}}, norm.eps);
      x = added.sum;
      return added.normed;
    };
    for (size_t i = 0; i < layers_.size(); ++i) {
      const StepLayer& layer = layers_[i];
      plus = mix(layer, next_norm(layer.mixer_norm), state.layers[i]);
      plus = swiglu(layer, next_norm(layer.mlp_norm));
    }
    return at::linear(next_norm(final_norm()), head()).to(at::kFloat);
  }

  CausalLM& model_;
  Weights weights_;
  std::vector<StepLayer> layers_;
  std::optional<Prefill> prefill_;
  std::optional<RecordedPrefill> recorded_;
  std::optional<WholeStep> whole_;  // none if the options forbid it
  std::set<std::string> notes_;
};

}  // namespace

std::string step_refusal(const CausalLM& model, std::optional<at::ScalarType> compute) {
  if (const std::string reason = device_refusal(model.device()); !reason.empty()) return reason;
  const at::ScalarType stored = model.parameters().at(model.head_weight()).scalar_type(), type = compute.value_or(stored);
  if (type != at::kBFloat16) return std::string("matrices are ") + c10::toString(type) + ", the kernels take bf16";
  if (stored == at::kDouble) return "the parameters are stored in fp64";
  if (const std::string reason = norm_refusal("hidden_size", model.config().backbone.hidden_size); !reason.empty()) return reason;
  if (model.config().intermediate_size == 0) return "the blocks have no MLP";
  return columns_refusal("intermediate_size", model.config().intermediate_size);
}

std::unique_ptr<StepEngine> prepare_steps(CausalLM& model, const StepOptions& options) {
  return std::make_unique<Sm90Step>(model, options);
}

WholeStep* whole_step_of(StepEngine& engine) {
  auto* const sm90 = dynamic_cast<Sm90Step*>(&engine);
  return sm90 == nullptr ? nullptr : sm90->whole();
}

}  // namespace cyfa::fused
