// One layer of a language model: x + mixer(norm(x)), then, where there is an MLP, x + SwiGLU(norm(x)).
//
// A block has a table of parameters of its own, with names relative to the layer, so that a front end may hold one by itself; a model
// strings the tables of its blocks together. Blocks are descriptions, as mixers are: equal layers share one.
#pragma once

#include <memory>

#include "cyfa/mixers/registry.h"
#include "cyfa/mixers/weights.h"

namespace cyfa {

struct BlockConfig {
  BackboneShape shape;
  BackboneLayout names;
  int64_t intermediate_size = 0;  // of the MLP; 0: none
  MixerFactory mixer;
};

class Block {
 public:
  explicit Block(const BlockConfig& config);

  const ParameterTable& table() const { return table_; }
  const Mixer& mixer() const { return *mixer_; }
  bool has_mlp() const { return has_mlp_; }
  double norm_eps() const { return norm_eps_; }
  // Parameters around the mixer, for engines that fuse them; all but the first where has_mlp().
  struct Ids {
    ParameterId mixer_norm = 0, mlp_norm = 0, gate = 0, up = 0, down = 0;
  };
  const Ids& ids() const { return ids_; }

  MixerState initial_state(int64_t sequences, at::Device device) const;

  // Whole sequences, x [B, T, D], or packed ones with cu_seqlens. `initial` may be null and is never changed. Differentiable.
  at::Tensor forward(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens, const MixerState* initial,
                     MixerState* final_state) const;
  // One token for each of B sequences, x [B, D]; `state` is updated in place. Without autograd.
  at::Tensor step(const Weights& w, const at::Tensor& x, MixerState& state) const;

  // How the mixer uses its memory on x [B, T, D].
  Figures health(const Weights& w, const at::Tensor& x) const;

 private:
  at::Tensor norm(const Weights& w, ParameterId weight, const at::Tensor& x) const;

  ParameterTable table_;
  std::unique_ptr<Mixer> mixer_;
  Ids ids_;
  bool has_mlp_;
  double norm_eps_;
};

}  // namespace cyfa
