// A causal language model: embedding, blocks, final norm, head. One class for every mixer and device, computed plainly from separate
// weights: this is what a model means. Engines (cyfa/engine) run the same on a device's own terms.
//
//   CausalLM model(ModelConfig::read("configs/cyfa-400m.json"));
//   model.initialise(42);
//   const Weights w = model.weights();
//   at::Tensor logits = model.head(w, model.forward(w, ids).hidden);
//
// The model holds stored parameters; weights() gives them in the type to compute with, and everything computes with what it is handed.
#pragma once

#include <memory>

#include "cyfa/model/block.h"
#include "cyfa/model/config.h"
#include "cyfa/model/state.h"

namespace cyfa {

struct LmOutput {
  at::Tensor hidden;  // [B, T, D], before the final norm
  ModelState final_state;
};

class CausalLM {
 public:
  // Declares the parameters; they are undefined until initialise() or a checkpoint sets them.
  explicit CausalLM(ModelConfig config);

  const ModelConfig& config() const { return config_; }
  const ParameterTable& table() const { return table_; }

  // Stored parameters by ParameterId. Set requires_grad on them to train.
  std::vector<at::Tensor>& parameters() { return parameters_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  at::Device device() const { return parameters_.at(0).device(); }

  // Draws all parameters by the table; the same seed gives the same model everywhere.
  void initialise(uint64_t seed, at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);

  // Matrices in `compute` (absent: as stored), everything else in fp32 (fp64 where stored so); differentiable casts.
  Weights weights(std::optional<at::ScalarType> compute = std::nullopt) const;

  // The layers: a block, shared by equal layers, and where its parameters begin in the table.
  struct Layer {
    std::shared_ptr<const Block> block;
    ParameterId first = 0;

    Weights weights(const Weights& of_model) const { return of_model.slice(first, block->table().specs().size()); }
  };
  const std::vector<Layer>& layers() const { return layers_; }
  ParameterId norm_weight() const { return norm_; }
  ParameterId head_weight() const { return config_.tied_head ? embeddings_ : head_; }

  ModelState initial_state(int64_t sequences) const;
  // Memory that may be in bf16 is put in `dtype`, bf16 or fp32, for steps; forward takes fp32.
  void set_state_type(ModelState& state, at::ScalarType dtype) const;
  void check_state(const ModelState& state) const;  // throws ops::ArgumentError where it is not one of this model's

  void check_ids(const at::Tensor& ids) const;  // throws ops::ArgumentError for ids on the CPU that are not in the vocabulary

  at::Tensor embed(const Weights& w, const at::Tensor& ids) const;  // ids [...] to [..., D]

  // ids [B, T], or packed sequences [1, T] with cu_seqlens. `initial` is never changed. recompute: keep each layer's input alone for
  // backward and compute the layer again there; final states then take no gradient.
  LmOutput forward(const Weights& w, const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens = std::nullopt,
                   const ModelState* initial = nullptr, bool recompute = false) const;
  at::Tensor head(const Weights& w, const at::Tensor& hidden) const;       // logits [..., vocab_size]
  at::Tensor head_step(const Weights& w, const at::Tensor& hidden) const;  // hidden [B, D]; fp32 logits [B, vocab_size]

  // One token for each of B sequences, ids [B]: fp32 logits [B, vocab_size]; `state` is updated in place. Without autograd.
  at::Tensor step(const Weights& w, const at::Tensor& ids, ModelState& state) const;
  // What a step asks of its arguments; throws ops::ArgumentError.
  void check_step(const at::Tensor& ids, const ModelState& state) const;

  // Mean cross-entropy of targets [B, T] given inputs [B, T]; targets of ops::kIgnore do not count. With cu_seqlens, rows are taken as
  // packed sequences [1, B * T].
  at::Tensor loss(const Weights& w, const at::Tensor& inputs, const at::Tensor& targets,
                  const std::optional<at::Tensor>& cu_seqlens = std::nullopt, bool recompute = false) const;
  // The same of each token's prediction of the next one, over ids [B, T] with T of at least 2.
  at::Tensor next_token_loss(const Weights& w, const at::Tensor& ids) const;

  // Figures of the mixers on ids [B, T], averaged over the layers that have them: how the memory is used.
  Figures health(const Weights& w, const at::Tensor& ids) const;

  std::optional<MemoryView> view(const ModelState& state, size_t layer) const {
    return layers_.at(layer).block->mixer().view(state.layers.at(layer));
  }

  int64_t memory_scalars(size_t layer = 0) const;  // recurrent state of one layer and sequence, as the paper counts it
  int64_t state_bytes() const;                     // all that one sequence carries, all layers
  double forward_flops_per_token() const;          // matrix products of one token, the recurrence included, the embedding's lookup not

 private:
  ModelConfig config_;
  ParameterTable table_;
  std::vector<at::Tensor> parameters_;
  std::vector<Layer> layers_;
  ParameterId embeddings_ = 0, norm_ = 0, head_ = 0;
};

}  // namespace cyfa
