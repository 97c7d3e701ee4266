#include "cyfa/model/block.h"

#include "cyfa/mixers/call.h"
#include "cyfa/ops/common/autocast.h"

namespace cyfa {

Block::Block(const BlockConfig& config) : has_mlp_(config.intermediate_size > 0), norm_eps_(config.shape.norm_eps) {
  const int64_t D = config.shape.hidden_size, F = config.intermediate_size;
  const Init normal = Init::normal(config.shape.initializer_range);
  const ParameterScope scope(table_, "");
  ids_.mixer_norm = scope.other(config.names.mixer_norm + ".weight", {D}, Init::ones());
  mixer_ = config.mixer(scope.sub(config.names.mixer));
  if (!has_mlp_) return;
  ids_.mlp_norm = scope.other(config.names.mlp_norm + ".weight", {D}, Init::ones());
  const ParameterScope mlp = scope.sub(config.names.mlp);
  ids_.gate = mlp.matrix("gate_proj.weight", {F, D}, normal);
  ids_.up = mlp.matrix("up_proj.weight", {F, D}, normal);
  ids_.down = mlp.matrix("down_proj.weight", {D, F}, config.shape.rescales_residual ? config.shape.rescaled(F) : normal);
}

MixerState Block::initial_state(int64_t sequences, at::Device device) const {
  MixerState tensors;
  for (const StateSpec& spec : mixer_->state()) {
    std::vector<int64_t> shape = {sequences};
    shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
    tensors.push_back(at::zeros(shape, at::TensorOptions(spec.dtype).device(device)));
  }
  return tensors;
}

at::Tensor Block::norm(const Weights& w, ParameterId weight, const at::Tensor& x) const { return ops::rms_norm(x, w[weight], norm_eps_); }

at::Tensor Block::forward(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens, const MixerState* initial,
                          MixerState* final_state) const {
  const ops::WithoutAutocast plain_types;
  at::Tensor y;
  {
    Call mixing = call(w, x, cu_seqlens, initial);
    y = x + mixer_->mix(mixing);
    *final_state = mixing.take_final_state();
  }
  return mlp(w, y);
}

Call Block::call(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens, const MixerState* initial) const {
  const ops::WithoutAutocast plain_types;
  return Call(w, norm(w, ids_.mixer_norm, x), cu_seqlens, initial, mixer_->state().size());
}

at::Tensor Block::forward(Call& call, const at::Tensor& x) const {
  const ops::WithoutAutocast plain_types;
  return mlp(call.weights(), x + mixer_->mix(call));
}

at::Tensor Block::mlp(const Weights& w, const at::Tensor& y) const {
  if (!has_mlp_) return y;
  const at::Tensor normed = norm(w, ids_.mlp_norm, y);
  return y + ops::linear(ops::swiglu(ops::linear(normed, w[ids_.gate]), ops::linear(normed, w[ids_.up])), w[ids_.down]);
}

at::Tensor Block::step(const Weights& w, const at::Tensor& x, MixerState& state) const {
  const ops::WithoutAutocast plain_types;
  Call call(w, norm(w, ids_.mixer_norm, x), state);
  const at::Tensor y = x + mixer_->mix(call);
  if (!has_mlp_) return y;
  const std::vector<at::Tensor> wide = ops::linear_steps(norm(w, ids_.mlp_norm, y), {{w[ids_.gate], {}}, {w[ids_.up], {}}});
  return y + ops::linear_step(ops::swiglu(wide[0], wide[1]), w[ids_.down]);
}

Figures Block::health(const Weights& w, const at::Tensor& x) const {
  const ops::WithoutAutocast plain_types;
  const at::NoGradGuard no_grad;
  Call mixing = call(w, x);
  return mixer_->health(mixing);
}

}  // namespace cyfa
