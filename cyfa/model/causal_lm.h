// A causal language model: embedding, blocks, final norm, head. One class serves every mixer and device. It computes with separate, unfused
// weights and defines the model; engines (cyfa/engine) compute the same function with device-specific optimizations.
//
//   CausalLM model(ModelConfig::read("configs/cyfa-400m.json"));
//   model.initialise(42);
//   const Weights w = model.weights();
//   at::Tensor logits = model.head(w, model.forward(w, ids).hidden);
//
// The model holds the stored parameters. weights() converts them to the compute type, and every function computes with the weights it is
// given.
#pragma once

#include <memory>

#include "cyfa/model/block.h"
#include "cyfa/model/config.h"
#include "cyfa/model/state.h"

namespace cyfa {

// The result of CausalLM::forward().
struct LmOutput {
  at::Tensor hidden;  // [B, T, D], before the final norm
  ModelState final_state;
};

// The model: config, parameter table, stored parameters and layers.
class CausalLM {
 public:
  // Declares the parameters; they are undefined until initialise() or a checkpoint sets them.
  explicit CausalLM(ModelConfig config);

  const ModelConfig& config() const { return config_; }
  const ParameterTable& table() const { return table_; }

  // The stored parameters by ParameterId. Set requires_grad on them to train.
  std::vector<at::Tensor>& parameters() { return parameters_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  at::Device device() const { return parameters_.at(0).device(); }

  // Initialises all parameters as the table says. The same seed gives the same model on every device and in every type.
  void initialise(uint64_t seed, at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);

  // Matrices converted to `compute` (default: their stored type), everything else to fp32 (or fp64 if stored in fp64). The casts are
  // differentiable. With `arrive`, each parameter is read at its first use, after arrive(id).
  Weights weights(std::optional<at::ScalarType> compute = std::nullopt, std::function<void(ParameterId)> arrive = {}) const;

  // A layer: its block, shared by identical layers, and the id of its first parameter.
  struct Layer {
    std::shared_ptr<const Block> block;
    ParameterId first = 0;

    Weights weights(const Weights& of_model) const { return of_model.slice(first, block->table().specs().size()); }
  };
  const std::vector<Layer>& layers() const { return layers_; }
  ParameterId embedding_weight() const { return embeddings_; }
  ParameterId norm_weight() const { return norm_; }
  ParameterId head_weight() const { return config_.tied_head ? embeddings_ : head_; }

  // The empty state of `sequences` sequences.
  ModelState initial_state(int64_t sequences) const;
  // Converts the states that support bf16 (StateSpec::narrow) to `dtype`, bf16 or fp32, for decode steps. forward() requires fp32.
  void set_state_type(ModelState& state, at::ScalarType dtype) const;
  void check_state(const ModelState& state) const;  // throws ops::ArgumentError if the state does not match this model

  // Throws ops::ArgumentError for ids that are not in the vocabulary. Values are checked on the CPU only.
  void check_ids(const at::Tensor& ids) const;

  at::Tensor embed(const Weights& w, const at::Tensor& ids) const;  // ids [...] to [..., D]

  // Forward over ids [B, T], or over packed sequences [1, T] with cu_seqlens. `initial` is never modified. `recompute` enables activation
  // checkpointing: only each layer's input is saved, and the layer is recomputed in backward; final states then carry no gradient.
  LmOutput forward(const Weights& w, const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens = std::nullopt,
                   const ModelState* initial = nullptr, bool recompute = false) const;
  // Final norm and head.
  at::Tensor head(const Weights& w, const at::Tensor& hidden) const;       // logits [..., vocab_size]
  at::Tensor head_step(const Weights& w, const at::Tensor& hidden) const;  // hidden [B, D] to fp32 logits [B, vocab_size]

  // Mean cross-entropy of targets [B, T] given hidden [B, T, D], without storing all logits. Targets equal to ops::kIgnore are ignored.
  at::Tensor head_loss(const Weights& w, const at::Tensor& hidden, const at::Tensor& targets) const;

  // Decode step: one token of each of B sequences, ids [B], to fp32 logits [B, vocab_size]. `state` is updated in place. No autograd.
  at::Tensor step(const Weights& w, const at::Tensor& ids, ModelState& state) const;
  // Checks the arguments of a step; throws ops::ArgumentError.
  void check_step(const at::Tensor& ids, const ModelState& state) const;

  // Mean cross-entropy of targets [B, T] given inputs [B, T]. Targets equal to ops::kIgnore are ignored. With cu_seqlens, the rows are
  // concatenated to packed sequences [1, B * T].
  at::Tensor loss(const Weights& w, const at::Tensor& inputs, const at::Tensor& targets,
                  const std::optional<at::Tensor>& cu_seqlens = std::nullopt, bool recompute = false) const;
  // Mean cross-entropy of next-token prediction over ids [B, T], T >= 2.
  at::Tensor next_token_loss(const Weights& w, const at::Tensor& ids) const;

  // Mixer::health() on ids [B, T]: each metric over all layers that have it, which is the mean of the layers' means, the least of their
  // minima and the most of their maxima.
  Figures health(const Weights& w, const at::Tensor& ids) const;

  // Mixer::view() of a layer's state.
  std::optional<MemoryView> view(const ModelState& state, size_t layer) const {
    return layers_.at(layer).block->mixer().view(state.layers.at(layer));
  }

  int64_t memory_scalars(size_t layer = 0) const;  // elements of one layer's recurrent state per sequence, as counted in the paper
  int64_t state_bytes() const;                     // bytes of one sequence's state over all layers, everything included
  double forward_flops_per_token() const;          // matrix products and recurrences; the embedding lookup is not counted

 private:
  ModelConfig config_;
  ParameterTable table_;
  std::vector<at::Tensor> parameters_;
  std::vector<Layer> layers_;
  ParameterId embeddings_ = 0, norm_ = 0, head_ = 0;
};

}  // namespace cyfa
