#include "cyfa/model/causal_lm.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>

#include "cyfa/engine/sm90/decode_rows.h"
#include "cyfa/engine/sm90/decode_step.h"
#include "cyfa/engine/sm90/packed.h"
#include "cyfa/model/recompute.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/ops/dense/dense.h"

namespace cyfa {
namespace {

constexpr const char* kOp = "model";

at::ScalarType at_least_float(at::ScalarType type) { return at::promote_types(type, at::kFloat); }

}  // namespace

CausalLM::CausalLM(ModelConfig config) : config_(std::move(config)) {
  const BackboneLayout& names = config_.kind->layout;
  const BackboneShape& shape = config_.backbone;
  const int64_t D = shape.hidden_size, F = config_.intermediate_size;
  const Init normal = Init::normal(shape.initializer_range);
  const ParameterScope top(table_, "");
  const ParameterScope root = top.sub(names.root);
  embeddings_ = root.matrix(names.embeddings + ".weight", {config_.vocab_size, D}, normal);
  for (int64_t i = 0; i < shape.layers; ++i) {
    const ParameterScope scope = root.sub(names.layers).sub(std::to_string(i));
    Layer layer;
    layer.mixer_norm = scope.other(names.mixer_norm + ".weight", {D}, Init::ones());
    layer.mixer = config_.mixer(scope.sub(names.mixer), i);
    if (F > 0) {
      layer.mlp_norm = scope.other(names.mlp_norm + ".weight", {D}, Init::ones());
      const ParameterScope mlp = scope.sub(names.mlp);
      layer.gate = mlp.matrix("gate_proj.weight", {F, D}, normal);
      layer.up = mlp.matrix("up_proj.weight", {F, D}, normal);
      layer.down = mlp.matrix("down_proj.weight", {D, F}, normal);
      if (ops::packs_norm(D)) scope.pack({layer.mlp_norm});
      if (ops::packs_columns(D) && ops::packs_columns(F)) {
        scope.pack({layer.gate, layer.up});
        scope.pack({layer.down});
      }
    }
    if (ops::packs_norm(D)) scope.pack({layer.mixer_norm});
    layers_.push_back(std::move(layer));
  }
  norm_ = root.other(names.norm + ".weight", {D}, Init::ones());
  if (ops::packs_norm(D)) root.pack({norm_});
  if (!config_.tied_head) {
    head_ = top.matrix(names.head + ".weight", {config_.vocab_size, D}, normal);
    if (ops::packs_columns(config_.vocab_size)) top.pack({head_});
  }
  parameters_.resize(table_.specs().size());
}

void CausalLM::initialise(uint64_t seed, at::ScalarType dtype, at::Device device) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  for (size_t id = 0; id < parameters_.size(); ++id) {
    const ParameterSpec& spec = table_.specs()[id];
    parameters_[id] = at::empty(spec.shape, at::TensorOptions(dtype).device(device));
    cyfa::initialise(spec.init, parameters_[id], generator);
  }
}

Weights CausalLM::weights(std::optional<at::ScalarType> compute) const {
  Weights w;
  w.tensors.reserve(parameters_.size());
  for (size_t id = 0; id < parameters_.size(); ++id) {
    const at::Tensor& p = parameters_[id];
    const bool matrix = table_.specs()[id].role == Role::kMatrix;
    w.tensors.push_back(p.to(matrix ? compute.value_or(p.scalar_type()) : at_least_float(p.scalar_type())));
  }
  return w;
}

Weights CausalLM::step_weights(std::optional<at::ScalarType> compute) const {
  const at::NoGradGuard no_grad;
  Weights w = weights(compute);
  for (const Layer& layer : layers_) w.derived.push_back(layer.mixer->derive(w));
  const bool single = w[norm_].scalar_type() == at::kFloat && w[head_weight()].scalar_type() == at::kBFloat16;
  if (single && ops::packs_on(device()) && ops::packs_norm(config_.backbone.hidden_size) && ops::packs_columns(config_.intermediate_size)) {
    for (const Layer& layer : layers_) w.gate_up.push_back(at::cat({w[layer.gate], w[layer.up]}));
  }
  return w;
}

ModelState CausalLM::initial_state(int64_t sequences) const {
  ModelState state;
  for (const Layer& layer : layers_) {
    MixerState tensors;
    for (const StateSpec& spec : layer.mixer->state()) {
      std::vector<int64_t> shape = {sequences};
      shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
      tensors.push_back(at::zeros(shape, at::TensorOptions(spec.dtype).device(device())));
    }
    state.layers.push_back(std::move(tensors));
  }
  return state;
}

void CausalLM::set_state_type(ModelState& state, at::ScalarType dtype) const {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const std::vector<StateSpec>& specs = layers_[layer].mixer->state();
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].narrow) state.layers.at(layer).at(i) = state.layers[layer][i].to(dtype);
    }
  }
}

void CausalLM::check_state(const ModelState& state) const {
  if (state.layers.size() != layers_.size()) {
    ops::check::fail(kOp, "the state has " + std::to_string(state.layers.size()) + " layers, wanted " + std::to_string(layers_.size()));
  }
  const auto refuse = [&](size_t layer, const std::string& what) {
    ops::check::fail(kOp, "the state of layer " + std::to_string(layer) + " " + what + ": it belongs to another model than " +
                              config_.kind->model_type + " with this config");
  };
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const std::vector<StateSpec>& specs = layers_[layer].mixer->state();
    const MixerState& tensors = state.layers[layer];
    if (tensors.size() != specs.size())
      refuse(layer, "has " + std::to_string(tensors.size()) + " tensors, wanted " + std::to_string(specs.size()));
    for (size_t i = 0; i < specs.size(); ++i) {
      const bool like = at::isFloatingType(tensors[i].scalar_type()) == at::isFloatingType(specs[i].dtype) &&
                        tensors[i].dim() == static_cast<int64_t>(specs[i].shape.size()) + 1 && tensors[i].size(0) == state.sequences() &&
                        specs[i].fits(tensors[i].sizes().slice(1));
      if (!like)
        refuse(layer, "has " + specs[i].name + " of shape " + c10::str(tensors[i].sizes()) + ", wanted [N" +
                          (specs[i].grows ? ", tokens" : "") + "] + " +
                          c10::str(at::IntArrayRef(specs[i].shape).slice(specs[i].grows ? 1 : 0)));
    }
  }
}

void CausalLM::check_ids(const at::Tensor& ids) const {
  if (ids.scalar_type() != at::kLong && ids.scalar_type() != at::kInt)
    ops::check::fail(kOp, std::string("ids have type ") + c10::toString(ids.scalar_type()) + ", wanted Long or Int");
  if (ids.is_cpu() && ids.numel() > 0) {  // on a GPU the lookup itself stops at such an id
    const auto [least, most] = at::aminmax(ids);
    const auto low = least.item<int64_t>(), high = most.item<int64_t>();
    if (low < 0 || high >= config_.vocab_size) {
      ops::check::fail(kOp, "ids hold " + std::to_string(low < 0 ? low : high) +
                                ", wanted 0 .. vocab_size - 1 = " + std::to_string(config_.vocab_size - 1));
    }
  }
}

at::Tensor CausalLM::embed(const Weights& w, const at::Tensor& ids) const {
  check_ids(ids);
  const at::Tensor& table = w[embeddings_];
  // As in most models' origin, the embedding of the padding token is never trained, wherever the token stands.
  const int64_t untrained = config_.kind->layout.trains_padding ? -1 : config_.pad.value_or(-1);
  return at::embedding(table, ids.to(table.device()), untrained).to(ops::activation_type(table.scalar_type(), table.device()));
}

LmOutput CausalLM::forward(const Weights& w, const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens, const ModelState* initial,
                           bool recompute) const {
  LmOutput out;
  out.hidden = layers(w, ids, cu_seqlens, initial, recompute, &out.final_state).sum();
  return out;
}

CausalLM::Stream CausalLM::layers(const Weights& w, const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens,
                                  const ModelState* initial, bool recompute, ModelState* final_state) const {
  ops::check::shape(kOp, "ids", ids, {{"B", -1}, {"T", -1}});
  if (initial != nullptr) {
    if (!w.packed.empty()) ops::check::fail(kOp, "packed weights are for training from an empty memory, but a state was given");
    check_state(*initial);
  }
  Stream stream = {embed(w, ids), {}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const MixerState* before = initial == nullptr ? nullptr : &initial->layers[i];
    MixerState after;
    if (recompute && at::GradMode::is_enabled()) {
      const auto body = [this, &w, &layer, cu_seqlens, before, keep = &after, once = true](const at::Tensor& from) mutable {
        MixerState again;
        return block(w, layer, {from, {}}, cu_seqlens, before, std::exchange(once, false) ? keep : &again).sum();
      };
      stream = {recomputed(stream.sum(), body), {}};
    } else {
      stream = block(w, layer, stream, cu_seqlens, before, &after);
    }
    final_state->layers.push_back(std::move(after));
  }
  return stream;
}

at::Tensor CausalLM::norm(const Weights& w, ParameterId weight, Stream* stream) const {
  const double eps = config_.backbone.norm_eps;
  if (w.packs(weight)) {
    const ops::AddedNorm out = ops::add_rms_norm(stream->x, stream->plus, w.packed[weight], eps);
    *stream = {out.sum, {}};
    return out.normed;
  }
  *stream = {stream->sum(), {}};
  return ops::rms_norm(stream->x, w[weight], eps);
}

CausalLM::Stream CausalLM::block(const Weights& w, const Layer& layer, const Stream& from, const std::optional<at::Tensor>& cu_seqlens,
                                 const MixerState* initial, MixerState* final_state) const {
  Stream stream = from;
  MixerOutput mixed = layer.mixer->forward(w, norm(w, layer.mixer_norm, &stream), cu_seqlens, initial);
  *final_state = std::move(mixed.final_state);
  stream.plus = mixed.y;
  if (config_.intermediate_size == 0) return stream;
  const at::Tensor normed = norm(w, layer.mlp_norm, &stream);
  if (w.packs(layer.gate)) {
    stream.plus = ops::linear(ops::swiglu_halves(ops::linear(normed, w.packed[layer.gate])), w.packed[layer.down]);
  } else {
    stream.plus = ops::linear(ops::swiglu(ops::linear(normed, w[layer.gate]), ops::linear(normed, w[layer.up])), w[layer.down]);
  }
  return stream;
}

at::Tensor CausalLM::head(const Weights& w, const at::Tensor& hidden) const {
  return ops::linear(ops::rms_norm(hidden, w[norm_], config_.backbone.norm_eps), w[head_weight()]);
}

at::Tensor CausalLM::head_step(const Weights& w, const at::Tensor& hidden) const {
  return ops::linear_step(ops::rms_norm(hidden, w[norm_], config_.backbone.norm_eps), w[head_weight()]).to(at::kFloat);
}

bool CausalLM::recordable() const {
  return std::all_of(layers_.begin(), layers_.end(), [](const Layer& layer) { return layer.mixer->recordable(); });
}

at::Tensor CausalLM::step(const Weights& w, const at::Tensor& ids, ModelState& state) const {
  const at::NoGradGuard no_grad;
  check_state(state);
  ops::check::shape(kOp, "ids", ids, {{"B", state.sequences()}});
  const double eps = config_.backbone.norm_eps;
  at::Tensor x = embed(w, ids);
  if (!w.gate_up.empty()) {
    if (!ops::few_rows(x) && ops::some_rows(x)) return step_rows(w, x, state);
    at::Tensor plus;  // not yet added: the next norm does it
    const auto norm = [&](ParameterId weight) {
      const ops::AddedNorm added = ops::add_rms_norm(x, plus, {w[weight], {}}, eps);
      x = added.sum;
      return added.normed;
    };
    const bool few = ops::few_rows(x);  // parts of a layer may add themselves to x
    const auto add = [&] {
      if (few && plus.defined()) x = x + std::exchange(plus, {});
    };
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      if (!few || !layer.mixer->add_step(w, w.derived.at(i), x, w[layer.mixer_norm], eps, state.layers[i], w.gate_up[i])) {
        plus = layer.mixer->step(w, w.derived.at(i), norm(layer.mixer_norm), state.layers[i]);
        add();
      }
      const at::Tensor ahead = i + 1 < layers_.size() ? layers_[i + 1].mixer->first_matrix(w.derived[i + 1]) : at::Tensor();
      if (!few || !ops::add_swiglu_step(x, {w[layer.mlp_norm], eps}, w.gate_up[i], w[layer.down], ahead)) {
        plus = at::linear(ops::swiglu_halves(at::linear(norm(layer.mlp_norm), w.gate_up[i])), w[layer.down]);
        add();
      }
    }
    const at::Tensor logits = few ? ops::head_step(x, {w[norm_], eps}, w[head_weight()]) : at::Tensor();
    return logits.defined() ? logits : at::linear(norm(norm_), w[head_weight()]).to(at::kFloat);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    x = x + layer.mixer->step(w, w.derived.at(i), ops::rms_norm(x, w[layer.mixer_norm], eps), state.layers[i]);
    if (config_.intermediate_size == 0) continue;
    const at::Tensor normed = ops::rms_norm(x, w[layer.mlp_norm], eps);
    const std::vector<at::Tensor> wide = ops::linear_steps(normed, {{w[layer.gate], {}}, {w[layer.up], {}}});
    x = x + ops::linear_step(ops::swiglu(wide[0], wide[1]), w[layer.down]);
  }
  return head_step(w, x);
}

// Layers whose parts add themselves to the rows; what a part has no kernels for is computed and added here.
at::Tensor CausalLM::step_rows(const Weights& w, const at::Tensor& x, ModelState& state) const {
  const double eps = config_.backbone.norm_eps;
  const auto norm_of = [&](ParameterId weight) { return ops::StepNorm{w[weight], eps}; };
  const auto normed = [&](const ops::StepRows& rows, ParameterId weight) { return ops::rms_norm(rows.x, w[weight], eps); };
  ops::StepRows rows = ops::begin_rows(x, norm_of(layers_.front().mixer_norm));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const ops::StepNorm next = norm_of(i + 1 < layers_.size() ? layers_[i + 1].mixer_norm : norm_);
    if (!layer.mixer->add_rows(w, w.derived.at(i), rows, norm_of(layer.mlp_norm), state.layers[i])) {
      const at::Tensor mixed = layer.mixer->step(w, w.derived[i], normed(rows, layer.mixer_norm), state.layers[i]);
      rows = ops::begin_rows(rows.x + mixed, norm_of(layer.mlp_norm));
    }
    if (!ops::add_swiglu_rows(rows, w.gate_up[i], w[layer.down], next)) {
      const at::Tensor wide = ops::swiglu_halves(at::linear(normed(rows, layer.mlp_norm), w.gate_up[i]));
      rows = ops::begin_rows(rows.x + at::linear(wide, w[layer.down]), next);
    }
  }
  return at::linear(normed(rows, norm_), w[head_weight()]).to(at::kFloat);
}

at::Tensor CausalLM::loss(const Weights& w, const at::Tensor& inputs, const at::Tensor& targets,
                          const std::optional<at::Tensor>& cu_seqlens, bool recompute) const {
  if (inputs.sizes() != targets.sizes()) ops::check::fail(kOp, "targets have another shape than the inputs");
  const at::Tensor ids = cu_seqlens ? inputs.reshape({1, -1}) : inputs;
  ModelState unused;
  Stream stream = layers(w, ids, cu_seqlens, nullptr, recompute, &unused);
  const at::Tensor normed = norm(w, norm_, &stream).flatten(0, 1);
  const at::Tensor wanted = targets.reshape({-1}).to(at::kLong).to(normed.device());
  if (w.packs(head_weight())) return ops::linear_cross_entropy(normed, w.packed[head_weight()], wanted);
  return ops::linear_cross_entropy(normed, w[head_weight()].to(normed.scalar_type()), wanted);
}

at::Tensor CausalLM::next_token_loss(const Weights& w, const at::Tensor& ids) const {
  if (ids.dim() != 2 || ids.size(1) < 2) ops::check::fail(kOp, "ids have no next token to predict: wanted [B, T] with T of at least 2");
  const int64_t T = ids.size(1) - 1;
  return loss(w, ids.narrow(1, 0, T), ids.narrow(1, 1, T));
}

std::vector<std::pair<std::string, double>> CausalLM::health(const Weights& w, const at::Tensor& ids) const {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<std::string, double>> mean;
  at::Tensor x = embed(w, ids);
  for (const Layer& layer : layers_) {
    const auto figures = layer.mixer->health(w, ops::rms_norm(x, w[layer.mixer_norm], config_.backbone.norm_eps));
    if (mean.empty()) mean.resize(figures.size());
    for (size_t i = 0; i < figures.size(); ++i) {
      mean[i].first = figures[i].first;
      mean[i].second += figures[i].second / static_cast<double>(layers_.size());
    }
    MixerState after;
    x = block(w, layer, {x, {}}, std::nullopt, nullptr, &after).sum();
  }
  return mean;
}

int64_t CausalLM::memory_scalars() const {
  int64_t sum = 0;
  for (const StateSpec& spec : layers_.front().mixer->state()) {
    if (spec.memory) sum += c10::multiply_integers(spec.shape);
  }
  return sum;
}

int64_t CausalLM::state_bytes() const {
  int64_t sum = 0;
  for (const Layer& layer : layers_) {
    for (const StateSpec& spec : layer.mixer->state())
      sum += c10::multiply_integers(spec.shape) * static_cast<int64_t>(c10::elementSize(spec.dtype));
  }
  return sum;
}

double CausalLM::forward_flops_per_token() const {
  double products = 0;
  for (size_t id = 0; id < table_.specs().size(); ++id) {
    const bool looked_up = id == embeddings_ && !config_.tied_head;
    if (table_.specs()[id].role == Role::kMatrix && !looked_up) products += static_cast<double>(table_.specs()[id].numel());
  }
  double recurrence = 0;
  for (const Layer& layer : layers_) recurrence += layer.mixer->flops_per_token();
  return 2 * products + recurrence;
}

}  // namespace cyfa
