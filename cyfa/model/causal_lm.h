// A causal language model: embedding, pre-norm blocks of a mixer and a SwiGLU (or of a mixer alone), final norm, head. One class for every
// mixer.
//
//   CausalLM model(ModelConfig::read("configs/cyfa-400m.json"));
//   model.initialise(42);
//   const Weights w = model.weights();
//   at::Tensor logits = model.head(w, model.forward(w, ids).hidden);
//
// The model holds stored parameters; weights() gives them in the type to compute with, and everything computes with what it is handed.
#pragma once

#include <memory>

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
  // The same with what steps need, and without autograd.
  Weights step_weights(std::optional<at::ScalarType> compute = std::nullopt) const;

  ModelState initial_state(int64_t sequences) const;
  // Memory that may be in bf16 is put in `dtype`, bf16 or fp32, for steps; forward takes fp32.
  void set_state_type(ModelState& state, at::ScalarType dtype) const;
  void check_state(const ModelState& state) const;  // throws ops::ArgumentError where it is not one of this model's

  void check_ids(const at::Tensor& ids) const;  // throws ops::ArgumentError for ids on the CPU that are not in the vocabulary

  // ids [B, T], or packed sequences [1, T] with cu_seqlens. `initial` is never changed. recompute: keep each layer's input alone for
  // backward and compute the layer again there; final states then take no gradient.
  LmOutput forward(const Weights& w, const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens = std::nullopt,
                   const ModelState* initial = nullptr, bool recompute = false) const;
  at::Tensor head(const Weights& w, const at::Tensor& hidden) const;       // logits [..., vocab_size]
  at::Tensor head_step(const Weights& w, const at::Tensor& hidden) const;  // hidden [B, D]; fp32 logits [B, vocab_size]

  // One token for each of B sequences, ids [B]: fp32 logits [B, vocab_size]; `state` is updated in place. w is of step_weights().
  at::Tensor step(const Weights& w, const at::Tensor& ids, ModelState& state) const;
  // Whether such a step can be recorded on a GPU (StepGraph).
  bool recordable() const;

  // Mean cross-entropy of targets [B, T] given inputs [B, T]; targets of ops::kIgnore do not count. With cu_seqlens, rows are taken as
  // packed sequences [1, B * T].
  at::Tensor loss(const Weights& w, const at::Tensor& inputs, const at::Tensor& targets,
                  const std::optional<at::Tensor>& cu_seqlens = std::nullopt, bool recompute = false) const;
  // The same of each token's prediction of the next one, over ids [B, T] with T of at least 2.
  at::Tensor next_token_loss(const Weights& w, const at::Tensor& ids) const;

  // Figures of every mixer on ids [B, T], averaged over the layers: how the memory is used.
  std::vector<std::pair<std::string, double>> health(const Weights& w, const at::Tensor& ids) const;

  std::optional<MemoryView> view(const ModelState& state, size_t layer) const {
    return layers_.at(layer).mixer->view(state.layers.at(layer));
  }

  int64_t memory_scalars() const;          // recurrent state of one layer and sequence, as the paper counts it
  int64_t state_bytes() const;             // all that one sequence carries, all layers
  double forward_flops_per_token() const;  // matrix products of one token, the recurrence included, the embedding's lookup not

 private:
  struct Layer {
    ParameterId mixer_norm = 0, mlp_norm = 0, gate = 0, up = 0, down = 0;  // the last four where the config has an MLP
    std::unique_ptr<Mixer> mixer;
  };

  // The residual stream x + plus, not yet added up, so that the next norm may do it; an undefined `plus`: x.
  struct Stream {
    at::Tensor x, plus;

    at::Tensor sum() const { return plus.defined() ? x + plus : x; }
  };

  at::Tensor embed(const Weights& w, const at::Tensor& ids) const;
  Stream layers(const Weights& w, const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens, const ModelState* initial,
                bool recompute, ModelState* final_state) const;
  Stream block(const Weights& w, const Layer& layer, const Stream& from, const std::optional<at::Tensor>& cu_seqlens,
               const MixerState* initial, MixerState* final_state) const;
  // The norm of the stream; its sum is left in stream->x.
  at::Tensor norm(const Weights& w, ParameterId weight, Stream* stream) const;
  at::Tensor step_rows(const Weights& w, const at::Tensor& x, ModelState& state) const;  // of up to 64 rows
  ParameterId head_weight() const { return config_.tied_head ? embeddings_ : head_; }

  ModelConfig config_;
  ParameterTable table_;
  std::vector<at::Tensor> parameters_;
  std::vector<Layer> layers_;
  ParameterId embeddings_ = 0, norm_ = 0, head_ = 0;
};

}  // namespace cyfa
