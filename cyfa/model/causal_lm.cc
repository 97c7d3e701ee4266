#include "cyfa/model/causal_lm.h"

#include <ATen/CPUGeneratorImpl.h>

#include <map>

#include "cyfa/model/recompute.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/ops/dense/dense.h"

namespace cyfa {
namespace {

constexpr const char* kOp = "model";

}  // namespace

CausalLM::CausalLM(ModelConfig config) : config_(std::move(config)) {
  const BackboneLayout& names = config_.kind->layout;
  const BackboneShape& shape = config_.backbone;
  const Init normal = Init::normal(shape.initializer_range);
  const ParameterScope top(table_, "");
  const ParameterScope root = top.sub(names.root);
  embeddings_ = root.matrix(names.embeddings + ".weight", {config_.vocab_size, shape.hidden_size}, normal);
  std::vector<std::shared_ptr<const Block>> blocks;  // by index into config.mixers
  for (const MixerFactory& mixer : config_.mixers) {
    blocks.push_back(std::make_shared<const Block>(BlockConfig{shape, names, config_.intermediate_size, mixer}));
  }
  for (size_t i = 0; i < config_.layer_mixers.size(); ++i) {
    const std::shared_ptr<const Block>& block = blocks.at(config_.layer_mixers[i]);
    layers_.push_back({block, table_.append(names.root + "." + names.layers + "." + std::to_string(i) + ".", block->table())});
  }
  norm_ = root.other(names.norm + ".weight", {shape.hidden_size}, Init::ones());
  if (!config_.tied_head) head_ = top.matrix(names.head + ".weight", {config_.vocab_size, shape.hidden_size}, normal);
  parameters_.resize(table_.specs().size());
}

void CausalLM::initialise(uint64_t seed, at::ScalarType dtype, at::Device device) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  for (size_t id = 0; id < parameters_.size(); ++id) {
    const ParameterSpec& spec = table_.specs()[id];
    parameters_[id] = at::empty(spec.shape, at::TensorOptions(dtype).device(device));
    cyfa::initialise(spec.init, parameters_[id], generator);
  }
  if (config_.kind->layout.zeroes_padding && config_.pad) {
    const at::NoGradGuard no_grad;
    parameters_[embeddings_][*config_.pad].zero_();
  }
}

Weights CausalLM::weights(std::optional<at::ScalarType> compute, std::function<void(ParameterId)> arrive) const {
  return converted_weights(table_.specs(), parameters_, compute, std::move(arrive));
}

ModelState CausalLM::initial_state(int64_t sequences) const {
  ModelState state;
  for (const Layer& layer : layers_) state.layers.push_back(layer.block->initial_state(sequences, device()));
  return state;
}

void CausalLM::set_state_type(ModelState& state, at::ScalarType dtype) const {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const std::vector<StateSpec>& specs = layers_[layer].block->mixer().state();
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
    const std::vector<StateSpec>& specs = layers_[layer].block->mixer().state();
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
  if (ids.is_cpu() && ids.numel() > 0) {  // on a GPU, the embedding lookup asserts the range
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
  // As in most original implementations, the embedding of the padding token gets no gradient, wherever the token occurs.
  const int64_t untrained = config_.kind->layout.trains_padding ? -1 : config_.pad.value_or(-1);
  return at::embedding(table, ids.to(table.device()), untrained).to(ops::activation_type(table.scalar_type(), table.device()));
}

LmOutput CausalLM::forward(const Weights& w, const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens, const ModelState* initial,
                           bool recompute) const {
  ops::check::shape(kOp, "ids", ids, {{"B", -1}, {"T", -1}});
  if (initial != nullptr) check_state(*initial);
  LmOutput out;
  out.hidden = embed(w, ids);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const MixerState* before = initial == nullptr ? nullptr : &initial->layers[i];
    MixerState after;
    if (recompute && at::GradMode::is_enabled()) {
      // The body must own what it uses: it runs again in backward, when the caller's weights and states may no longer exist.
      const auto body = [block = layers_[i].block, own = layers_[i].weights(w), cu_seqlens,
                         start = before == nullptr ? std::nullopt : std::optional(*before)](const at::Tensor& x, MixerState* final_state) {
        return block->forward(own, x, cu_seqlens, start ? &*start : nullptr, final_state);
      };
      out.hidden = recomputed(out.hidden, body, &after);
    } else {
      out.hidden = layers_[i].block->forward(layers_[i].weights(w), out.hidden, cu_seqlens, before, &after);
    }
    out.final_state.layers.push_back(std::move(after));
  }
  return out;
}

at::Tensor CausalLM::head(const Weights& w, const at::Tensor& hidden) const {
  return ops::linear(ops::rms_norm(hidden, w[norm_], config_.backbone.norm_eps), w[head_weight()]);
}

at::Tensor CausalLM::head_step(const Weights& w, const at::Tensor& hidden) const {
  return ops::linear_step(ops::rms_norm(hidden, w[norm_], config_.backbone.norm_eps), w[head_weight()]).to(at::kFloat);
}

at::Tensor CausalLM::head_loss(const Weights& w, const at::Tensor& hidden, const at::Tensor& targets) const {
  const at::Tensor normed = ops::rms_norm(hidden, w[norm_], config_.backbone.norm_eps).flatten(0, -2);
  const at::Tensor wanted = targets.reshape({-1}).to(at::kLong).to(normed.device());
  return ops::linear_cross_entropy(normed, w[head_weight()].to(normed.scalar_type()), wanted);
}

void CausalLM::check_step(const at::Tensor& ids, const ModelState& state) const {
  check_state(state);
  ops::check::shape(kOp, "ids", ids, {{"B", state.sequences()}});
  check_ids(ids);
}

at::Tensor CausalLM::step(const Weights& w, const at::Tensor& ids, ModelState& state) const {
  const at::NoGradGuard no_grad;
  check_step(ids, state);
  at::Tensor x = embed(w, ids);
  for (size_t i = 0; i < layers_.size(); ++i) x = layers_[i].block->step(layers_[i].weights(w), x, state.layers[i]);
  return head_step(w, x);
}

at::Tensor CausalLM::loss(const Weights& w, const at::Tensor& inputs, const at::Tensor& targets,
                          const std::optional<at::Tensor>& cu_seqlens, bool recompute) const {
  if (inputs.sizes() != targets.sizes()) ops::check::fail(kOp, "targets have another shape than the inputs");
  const at::Tensor hidden = forward(w, cu_seqlens ? inputs.reshape({1, -1}) : inputs, cu_seqlens, nullptr, recompute).hidden;
  return head_loss(w, hidden, targets);
}

at::Tensor CausalLM::next_token_loss(const Weights& w, const at::Tensor& ids) const {
  if (ids.dim() != 2 || ids.size(1) < 2) ops::check::fail(kOp, "ids have no next token to predict: wanted [B, T] with T of at least 2");
  const int64_t T = ids.size(1) - 1;
  return loss(w, ids.narrow(1, 0, T), ids.narrow(1, 1, T));
}

Figures CausalLM::health(const Weights& w, const at::Tensor& ids) const {
  const at::NoGradGuard no_grad;
  Figures all;
  std::map<std::string, std::pair<size_t, double>> places;  // of a metric: its index in `all`, and how many layers have it
  at::Tensor x = embed(w, ids);
  for (const Layer& layer : layers_) {
    const Weights own = layer.weights(w);
    for (const Figure& figure : layer.block->health(own, x)) {
      const auto [found, is_new] = places.try_emplace(figure.name, all.size(), 1.0);
      if (is_new) {
        all.push_back(figure);
        continue;
      }
      double& value = all[found->second.first].value;
      double& layers = found->second.second;
      layers += 1;
      switch (figure.over) {
        case Figure::Over::kMean: value += (figure.value - value) / layers; break;
        case Figure::Over::kLeast: value = std::min(value, figure.value); break;
        case Figure::Over::kMost: value = std::max(value, figure.value); break;
      }
    }
    MixerState after;
    x = layer.block->forward(own, x, std::nullopt, nullptr, &after);
  }
  return all;
}

int64_t CausalLM::memory_scalars(size_t layer) const {
  int64_t sum = 0;
  for (const StateSpec& spec : layers_.at(layer).block->mixer().state()) {
    if (spec.memory) sum += c10::multiply_integers(spec.shape);
  }
  return sum;
}

int64_t CausalLM::state_bytes() const {
  int64_t sum = 0;
  for (const Layer& layer : layers_) {
    for (const StateSpec& spec : layer.block->mixer().state())
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
  for (const Layer& layer : layers_) recurrence += layer.block->mixer().flops_per_token();
  return 2 * products + recurrence;
}

}  // namespace cyfa
