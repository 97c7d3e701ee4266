#include "cyfa/model/describe.h"

namespace cyfa {
namespace {

const char* type_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return "float64";
    case at::kLong: return "int64";
    default: return "float32";
  }
}

Json of_states(const Mixer& mixer) {
  Json states = Json::array();
  for (const StateSpec& s : mixer.state()) {
    states.push_back({{"name", s.name},
                      {"shape", s.shape},
                      {"dtype", type_name(s.dtype)},
                      {"memory", s.memory},
                      {"grows", s.grows},
                      {"narrow", s.narrow}});
  }
  return states;
}

Json of_layout(const BackboneLayout& l) {
  return {{"root", l.root}, {"embeddings", l.embeddings}, {"layers", l.layers}, {"mixer", l.mixer}, {"mixer_norm", l.mixer_norm},
          {"mlp", l.mlp},   {"mlp_norm", l.mlp_norm},     {"norm", l.norm},     {"head", l.head}};
}

}  // namespace

Json describe(const CausalLM& model) {
  const ModelConfig& c = model.config();
  Json layers = Json::array(), parameters = Json::array();
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const CausalLM::Layer& layer = model.layers()[i];
    layers.push_back({{"type", c.layer_types[i]},
                      {"flops_per_token", layer.block->mixer().flops_per_token()},
                      {"draws_noise", layer.block->mixer().draws_noise()},
                      {"parameters", {layer.first, layer.block->table().specs().size()}},
                      {"states", of_states(layer.block->mixer())}});
  }
  for (const ParameterSpec& p : model.table().specs()) {
    parameters.push_back({{"name", p.name},
                          {"shape", p.shape},
                          {"role", p.role == Role::kMatrix ? "matrix" : "other"},
                          {"weight_decay", p.weight_decay},
                          {"init", p.init.text()}});
  }
  return {{"model_type", c.kind->model_type},
          {"architecture", c.kind->architecture},
          {"config", c.resolved},
          {"layout", of_layout(c.kind->layout)},
          {"layers", layers},
          {"parameters", parameters},
          {"parameter_count", model.table().numel()},
          {"state_bytes", model.state_bytes()},
          {"forward_flops_per_token", model.forward_flops_per_token()}};
}

}  // namespace cyfa
