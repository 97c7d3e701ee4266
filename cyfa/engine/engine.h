// Engines: how a device runs a model. What a model computes is stated once, in cyfa/model; an engine computes the same on a device's own
// terms, with fused weights, fused kernels or recorded launches.
//
// Engines are offered like the backends of an op: as a list, the fastest first, each with a reason where it refuses. The first that does
// not refuse is taken, or the one that is asked for by name, which otherwise throws with its reason. `portable` serves everything: it is
// the plain model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cyfa/model/causal_lm.h"

namespace cyfa {

struct EngineOffer {
  std::string name;
  std::string refusal;  // in words for the user; empty: it serves
};

// Decoding.
class StepEngine {
 public:
  virtual ~StepEngine() = default;

  virtual std::string name() const = 0;  // "portable", "sm90"; "+graph" where steps are recorded and replayed
  virtual const CausalLM& model() const = 0;
  // As the engine computes with them; for prompts, which are read by CausalLM::forward.
  virtual const Weights& weights() const = 0;

  // One token for each of B sequences, ids [B]: fp32 logits [B, vocab_size]; `state` is updated in place. Throws ops::ArgumentError for ids
  // and states that do not belong together or to the model. On a GPU the logits may be overwritten by the next step.
  virtual at::Tensor step(const at::Tensor& ids, ModelState& state) = 0;

  // How a step of so many sequences runs, in words: "five launches a layer".
  virtual std::string path(int64_t sequences) const = 0;
  // What the engine could not do in its own way so far, and why.
  virtual std::vector<std::string> notes() const { return {}; }
};

struct StepOptions {
  std::optional<at::ScalarType> compute = {};  // of the matrices; absent: as stored
  std::string engine = "auto";
  bool record = true;  // on a GPU, record a state's step as a CUDA graph and replay it, where the mixers allow that
};

// Every engine there is, for a model whose parameters are set.
std::vector<EngineOffer> step_engines(const CausalLM& model, std::optional<at::ScalarType> compute = std::nullopt);
// Why steps of the model are not recorded; empty if they are.
std::string recording_refusal(const CausalLM& model);
// The model must outlive the engine. Its parameters may become views of the engine's fused weights, with the same values.
// Throws std::invalid_argument where an engine is asked for by name and is unknown or refuses.
std::unique_ptr<StepEngine> prepare_steps(CausalLM& model, const StepOptions& options = {});

// Training.
class TrainEngine {
 public:
  virtual ~TrainEngine() = default;

  virtual std::string name() const = 0;
  // Takes the parameters as they are now, for the losses until the next call. Gradients of parameters are added to their grad() by the
  // backward of those losses; they are zero, or undefined, before the first.
  virtual void begin_step() = 0;
  // As CausalLM::loss; differentiable. After begin_step.
  virtual at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets, const std::optional<at::Tensor>& cu_seqlens) = 0;
};

struct TrainOptions {
  std::optional<at::ScalarType> compute = {};  // of the matrices; absent: as stored
  std::string engine = "auto";
  bool recompute = false;  // activation checkpointing: each layer is computed again in backward
};

std::vector<EngineOffer> train_engines(const CausalLM& model, std::optional<at::ScalarType> compute = std::nullopt);
// The model must outlive the engine, and its parameters stay the same tensors meanwhile.
std::unique_ptr<TrainEngine> prepare_training(CausalLM& model, const TrainOptions& options = {});

// "auto" and the names of all engines, for help texts and checks of options.
std::vector<std::string> engine_names();

}  // namespace cyfa
