// One layer of a language model: x + mixer(norm(x)), then x + SwiGLU(norm(x)) if the layer has an MLP.
//
// A block has its own parameter table, with names relative to the layer, so it can be used on its own; a model concatenates the tables of
// its blocks. Like mixers, blocks hold no tensors: identical layers share one.
#pragma once

#include <memory>

#include "cyfa/mixers/registry.h"
#include "cyfa/mixers/weights.h"

namespace cyfa {

// What a block is built from.
struct BlockConfig {
  BackboneShape shape;
  BackboneLayout names;
  int64_t intermediate_size = 0;  // width of the MLP; 0 for no MLP
  MixerFactory mixer;
};

// One layer.
class Block {
 public:
  explicit Block(const BlockConfig& config);

  const ParameterTable& table() const { return table_; }
  const Mixer& mixer() const { return *mixer_; }
  bool has_mlp() const { return has_mlp_; }
  double norm_eps() const { return norm_eps_; }
  // Parameters around the mixer, for engines that fuse them. All but mixer_norm are valid only if has_mlp().
  struct Ids {
    ParameterId mixer_norm = 0, mlp_norm = 0, gate = 0, up = 0, down = 0;
  };
  const Ids& ids() const { return ids_; }

  // The empty state of `sequences` sequences.
  MixerState initial_state(int64_t sequences, at::Device device) const;

  // Forward over x [B, T, D], or over packed sequences [1, T, D] with cu_seqlens. `initial` and `final_state` may be null; `initial` is
  // never modified. Differentiable.
  at::Tensor forward(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens, const MixerState* initial,
                     MixerState* final_state) const;
  // The same in two parts, for analyses that hook into the mixer's call: the call on norm(x), and what follows from it. `w` must outlive
  // the call.
  Call call(const Weights& w, const at::Tensor& x, const std::optional<at::Tensor>& cu_seqlens = std::nullopt,
            const MixerState* initial = nullptr) const;
  at::Tensor forward(Call& call, const at::Tensor& x) const;
  // Decode step: one token of each of B sequences, x [B, D]; `state` is updated in place. No autograd.
  at::Tensor step(const Weights& w, const at::Tensor& x, MixerState& state) const;

  // Mixer::health() on x [B, T, D].
  Figures health(const Weights& w, const at::Tensor& x) const;

 private:
  at::Tensor norm(const Weights& w, ParameterId weight, const at::Tensor& x) const;
  at::Tensor mlp(const Weights& w, const at::Tensor& y) const;  // y + SwiGLU(norm(y)), or y if the layer has no MLP

  ParameterTable table_;
  std::unique_ptr<Mixer> mixer_;
  Ids ids_;
  bool has_mlp_;
  double norm_eps_;
};

}  // namespace cyfa
