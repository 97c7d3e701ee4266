// The parts of a model as one op, cyfa::part: Python's modules are made of calls of it, each with its own parameters.
//
//   part    x               params                             extra       first result
//   embed   ids [B, T]      embedding                                      [B, T, D]
//   block   [B, T, D]       the block's, in the table's order  cu_seqlens  [B, T, D]
//   mixer   [B, T, D]       the mixer's, in the table's order  cu_seqlens  [B, T, D]
//   head    [B, T, D]       final norm, head                               logits [B, T, vocab_size]
//   loss    [B, T, D]       final norm, head                   targets     mean cross-entropy, a scalar
//
// Blocks and mixers take and return states as further tensors. There are two ways to run a part: transparent, where autograd records every
// operation inside and saves its activations, and opaque (cyfa::_part_forward, cyfa::_part_backward), where backward runs the part again:
// activation checkpointing. Tensors without data, as torch.compile traces with, take the opaque way.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "cyfa/mixers/call.h"
#include "cyfa/ops/common/autocast.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/dense/dense.h"
#include "python/bindings/registered_model.h"

namespace cyfa::python {
namespace {

using at::Tensor;
using TensorVector = std::vector<Tensor>;
using OptionalTensor = std::optional<Tensor>;
using OptionalType = std::optional<at::ScalarType>;

constexpr const char* kOp = "part";

enum class Kind { kEmbed, kBlock, kMixer, kHead, kLoss };

Kind parse_kind(c10::string_view part) {
  if (part == "embed") return Kind::kEmbed;
  if (part == "block") return Kind::kBlock;
  if (part == "mixer") return Kind::kMixer;
  if (part == "head") return Kind::kHead;
  if (part == "loss") return Kind::kLoss;
  ops::check::fail(kOp, "part is '" + std::string(part) + "', wanted embed, block, mixer, head or loss");
}

// Which part of which model, and how it is computed.
struct Part {
  Part(c10::string_view config, c10::string_view part, int64_t number, OptionalType type, const OptionalTensor& seed)
      : model(registered_model(std::string(config))),
        kind(parse_kind(part)),
        layer(static_cast<size_t>(number)),
        compute(type),
        noise(seed) {
    if (has_layer() && layer >= model->layers().size()) {  // a negative one becomes too large
      ops::check::fail(kOp, "layer is " + std::to_string(number) + ", wanted 0 .. " + std::to_string(model->layers().size() - 1));
    }
  }

  bool has_layer() const { return kind == Kind::kBlock || kind == Kind::kMixer; }

  // The ids of its parameters in the model's table.
  std::vector<ParameterId> ids() const {
    if (kind == Kind::kEmbed) return {model->embedding_weight()};
    if (!has_layer()) return {model->norm_weight(), model->head_weight()};
    const CausalLM::Layer& l = model->layers()[layer];
    const std::string prefix = model->config().kind->layout.mixer + ".";
    std::vector<ParameterId> all;
    for (ParameterId id = 0; id < l.block->table().specs().size(); ++id) {
      if (kind == Kind::kBlock || l.block->table().specs()[id].name.starts_with(prefix)) all.push_back(l.first + id);
    }
    return all;
  }

  std::shared_ptr<const CausalLM> model;
  Kind kind;
  size_t layer;
  OptionalType compute;
  OptionalTensor noise;  // the seed of random numbers, a tensor so that torch.compile can draw it
};

// Throws unless there is a tensor of the right shape for each of the part's parameters.
void check_parameters(const Part& part, at::TensorList params) {
  const std::vector<ParameterId> ids = part.ids();
  if (params.size() != ids.size())
    ops::check::fail(kOp, "got " + std::to_string(params.size()) + " parameters, wanted " + std::to_string(ids.size()));
  for (size_t i = 0; i < ids.size(); ++i) {
    const ParameterSpec& spec = part.model->table().specs()[ids[i]];
    if (params[i].sym_sizes() != c10::fromIntArrayRefSlow(spec.shape)) {
      ops::check::fail(kOp,
                       spec.name + " has shape " + c10::str(params[i].sym_sizes()) + ", wanted " + c10::str(at::IntArrayRef(spec.shape)));
    }
  }
}

// Throws unless x is what the part reads: ids [B, T] or hidden states [B, T, D].
void check_input(const Part& part, const Tensor& x) {
  if (part.kind == Kind::kEmbed) return;  // embed() checks ids
  const int64_t width = part.model->config().backbone.hidden_size;
  if (x.dim() == 3 && x.sym_sizes()[2] == width && x.is_floating_point()) return;
  ops::check::fail(kOp, std::string("x has shape ") + c10::str(x.sym_sizes()) + " and type " + c10::toString(x.scalar_type()) +
                            ", wanted [B, T, hidden_size] = [B, T, " + std::to_string(width) + "] of a floating-point type");
}

Weights weights_of(const Part& part, at::TensorList params) {
  TensorVector all(part.model->table().specs().size());
  const std::vector<ParameterId> ids = part.ids();
  for (size_t i = 0; i < ids.size(); ++i) all[ids[i]] = params[i];
  const Weights w = converted_weights(part.model->table().specs(), std::move(all), part.compute);
  return part.noise ? w.with_noise(static_cast<uint64_t>(part.noise->item<int64_t>())) : w;
}

// The type of the activations: that of the matrices, or what a CPU computes with instead.
at::ScalarType activation_of(const Part& part, const Tensor& x, at::TensorList params) {
  const std::vector<ParameterId> ids = part.ids();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (part.model->table().specs()[ids[i]].role != Role::kMatrix) continue;
    return ops::activation_type(part.compute.value_or(params[i].scalar_type()), x.device());
  }
  return x.scalar_type();
}

// Runs a part. `state` is empty for an empty memory. Returns the result and, if it is wanted, the state after the last token.
TensorVector run(const Part& part, Tensor x, at::TensorList params, at::TensorList state, const OptionalTensor& extra,
                 at::ScalarType activation, bool final_state) {
  const ops::WithoutAutocast plain_types;
  const Weights w = weights_of(part, params);
  if (part.kind == Kind::kEmbed) return {part.model->embed(w, x)};
  x = x.to(activation);
  if (part.kind == Kind::kHead) return {part.model->head(w, x)};
  if (part.kind == Kind::kLoss) return {part.model->head_loss(w, x, *extra)};
  const CausalLM::Layer& layer = part.model->layers()[part.layer];
  const Weights own = layer.weights(w);
  const MixerState before(state.begin(), state.end());
  const MixerState* initial = before.empty() ? nullptr : &before;
  MixerState after;
  TensorVector out;
  if (part.kind == Kind::kBlock) {
    out = {layer.block->forward(own, x, extra, initial, &after)};
  } else {
    Call call(own, x, extra, initial, layer.block->mixer().state().size());
    out = {layer.block->mixer().mix(call)};
    after = call.take_final_state();
  }
  if (final_state) out.insert(out.end(), after.begin(), after.end());
  return out;
}

// Kernels of the opaque way.

Tensor forward_kernel(const Tensor& x, at::TensorList params, const OptionalTensor& extra, c10::string_view config, c10::string_view part,
                      int64_t layer, OptionalType compute, at::ScalarType activation, const OptionalTensor& noise) {
  const at::NoGradGuard no_grad;
  return run({config, part, layer, compute, noise}, x, params, {}, extra, activation, false)[0];
}

Tensor forward_meta(const Tensor& x, at::TensorList params, const OptionalTensor&, c10::string_view config, c10::string_view name,
                    int64_t layer, OptionalType compute, at::ScalarType activation, const OptionalTensor& noise) {
  const Part part(config, name, layer, compute, noise);
  check_parameters(part, params);
  std::vector<c10::SymInt> shape = x.sym_sizes().vec();
  if (part.kind == Kind::kLoss) return at::empty({}, x.options().dtype(at::promote_types(activation, at::kFloat)));
  if (part.kind == Kind::kEmbed) shape.emplace_back(part.model->config().backbone.hidden_size);
  if (part.kind == Kind::kHead) shape.back() = part.model->config().vocab_size;
  return at::empty_symint(shape, x.options().dtype(activation));
}

// The gradients of the tensors that are `needed`: 0 is x, i + 1 is params[i].
TensorVector backward_kernel(const Tensor& grad, const Tensor& x, at::TensorList params, const OptionalTensor& extra,
                             c10::string_view config, c10::string_view name, int64_t layer, OptionalType compute, at::ScalarType activation,
                             const OptionalTensor& noise, at::IntArrayRef needed) {
  // Inside a kernel the dispatcher leaves autograd out; the part runs again under it.
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  const c10::impl::ForceDispatchKeyGuard with_autograd(keys);
  const at::AutoGradMode enabled(true);
  TensorVector leaves = {x.detach()}, wanted;
  for (const Tensor& p : params) leaves.push_back(p.detach());
  for (const int64_t i : needed) wanted.push_back(leaves.at(static_cast<size_t>(i)).requires_grad_());
  const at::TensorList all(leaves);
  const Tensor y = run({config, name, layer, compute, noise}, leaves[0], all.slice(1), {}, extra, activation, false)[0];
  TensorVector found = torch::autograd::grad({y}, wanted, {grad}, std::nullopt, false, true);
  for (size_t i = 0; i < found.size(); ++i) found[i] = found[i].defined() ? found[i].contiguous() : at::zeros_like(wanted[i]);
  return found;
}

TensorVector backward_meta(const Tensor&, const Tensor& x, at::TensorList params, const OptionalTensor&, c10::string_view, c10::string_view,
                           int64_t, OptionalType, at::ScalarType, const OptionalTensor&, at::IntArrayRef needed) {
  TensorVector out;
  for (const int64_t i : needed) {
    const Tensor& from = i == 0 ? x : params[static_cast<size_t>(i) - 1];
    out.push_back(at::empty_symint(from.sym_sizes(), from.options()));
  }
  return out;
}

class OpaquePart : public torch::autograd::Function<OpaquePart> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, at::TensorList params, const OptionalTensor& extra,
                        const std::string& config, const std::string& part, int64_t layer, OptionalType compute, at::ScalarType activation,
                        const OptionalTensor& noise) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_part_forward", "").typed<decltype(forward_kernel)>();
    TensorVector saved = {x, extra.value_or(Tensor()), noise.value_or(Tensor())};
    saved.insert(saved.end(), params.begin(), params.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["config"] = config;
    ctx->saved_data["part"] = part;
    ctx->saved_data["layer"] = layer;
    ctx->saved_data["compute"] = compute;
    ctx->saved_data["activation"] = activation;
    return op.call(x, params, extra, config, part, layer, compute, activation, noise);
  }

  static TensorVector backward(torch::autograd::AutogradContext* ctx, TensorVector grads) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("cyfa::_part_backward", "").typed<decltype(backward_kernel)>();
    const TensorVector saved = ctx->get_saved_variables();
    const at::TensorList params = at::TensorList(saved).slice(3);
    std::vector<int64_t> needed;
    for (size_t i = 0; i <= params.size(); ++i) {
      if (ctx->needs_input_grad(i)) needed.push_back(static_cast<int64_t>(i));
    }
    const auto& d = ctx->saved_data;
    const auto optional = [](const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; };
    const TensorVector found = op.call(grads[0], saved[0], params, optional(saved[1]), d.at("config").toStringRef(),
                                       d.at("part").toStringRef(), d.at("layer").toInt(), d.at("compute").toOptional<at::ScalarType>(),
                                       d.at("activation").toScalarType(), optional(saved[2]), needed);
    TensorVector out(1 + params.size() + 7);  // extra and the settings have no gradient
    for (size_t i = 0; i < needed.size(); ++i) out[static_cast<size_t>(needed[i])] = found[i];
    return out;
  }
};

// A tensor without data of its own: on the meta device, or fake.
bool without_data(const Tensor& x) { return x.is_meta() || x.key_set().has(c10::DispatchKey::Python); }

TensorVector part_entry(const Tensor& x, at::TensorList params, at::TensorList state, const OptionalTensor& extra, c10::string_view config,
                        c10::string_view name, int64_t layer, OptionalType compute, const OptionalTensor& noise, bool final_state,
                        bool recompute) {
  const Part part(config, name, layer, compute, noise);
  check_input(part, x);
  check_parameters(part, params);
  if (part.kind == Kind::kLoss && !extra) ops::check::fail(kOp, "the loss has no targets; pass them as extra");
  const at::ScalarType activation = activation_of(part, x, params);
  const bool traced = without_data(x);
  if (!traced && !recompute) return run(part, x, params, state, extra, activation, final_state);
  if (!state.empty() || (final_state && part.has_layer())) {
    ops::check::fail(kOp, std::string(traced ? "torch.compile and meta tensors take" : "recompute takes") +
                              " no states; pass none and return_state=False");
  }
  return {OpaquePart::apply(x, params, extra, std::string(config), std::string(name), layer, compute, activation, noise)};
}

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  library.def(
      "part(Tensor x, Tensor[] params, Tensor[] state, Tensor? extra, str config, str part, int layer, ScalarType? compute, Tensor? noise, "
      "bool final_state, bool recompute) -> Tensor[]");
  library.def(
      "_part_forward(Tensor x, Tensor[] params, Tensor? extra, str config, str part, int layer, ScalarType? compute, ScalarType "
      "activation, Tensor? noise) -> Tensor");
  library.def(
      "_part_backward(Tensor grad, Tensor x, Tensor[] params, Tensor? extra, str config, str part, int layer, ScalarType? compute, "
      "ScalarType activation, Tensor? noise, int[] needed) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(cyfa, CompositeImplicitAutograd, library) { library.impl("part", part_entry); }

TORCH_LIBRARY_IMPL(cyfa, CPU, library) {
  library.impl("_part_forward", forward_kernel);
  library.impl("_part_backward", backward_kernel);
}

TORCH_LIBRARY_IMPL(cyfa, CUDA, library) {
  library.impl("_part_forward", forward_kernel);
  library.impl("_part_backward", backward_kernel);
}

TORCH_LIBRARY_IMPL(cyfa, Meta, library) {
  library.impl("_part_forward", forward_meta);
  library.impl("_part_backward", backward_meta);
}

TORCH_LIBRARY_IMPL(cyfa, Autograd, library) {
  library.impl("_part_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("_part_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace cyfa::python
