// Engines: device-specific implementations of a model. cyfa/model defines what a model computes; an engine computes the same function with
// fused weights, fused kernels or CUDA graphs.
//
// Engine selection works like backend selection for an op: engines are listed fastest first, each with a reason if it cannot run the model.
// "auto" takes the first that can. An engine requested by name throws its reason if it cannot. `portable` supports everything; it runs the
// plain model.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cyfa/model/causal_lm.h"

namespace cyfa {

// An engine and whether it supports a model.
struct EngineOffer {
  std::string name;
  std::string refusal;  // user-readable reason why it does not support the model; empty if it does
};

// An engine for decoding.
class StepEngine {
 public:
  virtual ~StepEngine() = default;

  virtual std::string name() const = 0;  // "portable", "sm90"; with suffix "+graph" if steps are replayed from a CUDA graph
  virtual const CausalLM& model() const = 0;
  // The weights in the engine's compute types.
  virtual const Weights& weights() const = 0;

  // As CausalLM::forward() with weights(), without autograd: prompts, texts to be scored. A prompt's result may depend on whether it has an
  // initial state of zeros or none (in its rounding); equal calls give equal bits.
  virtual LmOutput forward(const at::Tensor& ids, const std::optional<at::Tensor>& cu_seqlens = std::nullopt,
                           const ModelState* initial = nullptr);

  // Decode step: one token of each of B sequences, ids [B], to fp32 logits [B, vocab_size]. `state` is updated in place. Throws
  // ops::ArgumentError if ids or state do not match each other or the model. On a GPU, the next step may overwrite the logits.
  virtual at::Tensor step(const at::Tensor& ids, ModelState& state) = 0;

  // A description of how a step with this batch size runs: "five launches a layer".
  virtual std::string path(int64_t sequences) const = 0;
  // The fallbacks that the engine has used so far, with reasons; with WholeStepUse::kTimed also the times of the last step.
  virtual std::vector<std::string> notes() const { return {}; }
  // Throws std::runtime_error if an earlier step failed on the device, whose state is then lost. Every step begins with this check; the
  // last step has to be complete for its own failure to be seen.
  virtual void check() {}
};

// Whether a step of one sequence runs as one launch where the engine has one: never, yes, or yes with clock readings for notes(). One
// launch is faster, but gives a sequence other bits than a batch that it is part of.
enum class WholeStepUse { kOff, kOn, kTimed };

// Options of prepare_steps().
struct StepOptions {
  std::optional<at::ScalarType> compute = {};  // type of the matrices; default: their stored type
  std::string engine = "auto";
  // On a GPU, capture the step, and the forward of a prompt of up to 4,096 tokens, in CUDA graphs and replay them, if the mixers support
  // that.
  bool record = true;
  WholeStepUse whole_step = WholeStepUse::kOff;
};

// All decoding engines, for a model whose parameters are set.
std::vector<EngineOffer> step_engines(const CausalLM& model, std::optional<at::ScalarType> compute = std::nullopt);
// Why the model's steps cannot be captured in a CUDA graph; empty if they can.
std::string recording_refusal(const CausalLM& model);
// Creates a decoding engine. The model must outlive it. The model's parameters may become views of the engine's fused weights, with the
// same values. Throws std::invalid_argument if an engine requested by name is unknown or does not support the model.
std::unique_ptr<StepEngine> prepare_steps(CausalLM& model, const StepOptions& options = {});

// An engine for training.
class TrainEngine {
 public:
  virtual ~TrainEngine() = default;

  virtual std::string name() const = 0;
  // Reads the parameters' current values, which the losses use until the next call. The backward of those losses accumulates gradients into
  // the parameters' grad(): in fp32, or in the parameter's own type where autograd computes them, so that the caller must add those of a
  // bf16 parameter up itself. Gradients of weights that the engine fuses start at zero; the caller resets all others before. `noise` seeds
  // the random numbers that mixers draw in training, other ones in each loss; without it they draw none.
  virtual void begin_step(std::optional<uint64_t> noise) = 0;
  // From now on parameters may still be on their way from other ranks when a step begins: the engine calls arrive(id) before it first reads
  // a parameter in a step. Returns false if it cannot, because it reads all of them in begin_step().
  virtual bool read_late(std::function<void(ParameterId)> arrive);
  // From now on backward calls completed(id) as soon as it has written a gradient that the engine computes without autograd: once for each
  // such parameter in every backward, before those of earlier layers are written. The gradients of all other parameters are complete when
  // autograd has accumulated them.
  virtual void complete_early(std::function<void(ParameterId)> completed);
  // As CausalLM::loss(); differentiable. Requires begin_step().
  virtual at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets, const std::optional<at::Tensor>& cu_seqlens) = 0;
  // What the engine runs as the plain model does, and why.
  virtual std::vector<std::string> notes() const { return {}; }
  // The next losses are of one rank's stretch of sequences that are cut over ranks (cyfa/mixers/cut.h), with the inputs, targets and
  // cu_seqlens of cut_batch(); null: of whole sequences. An engine cuts whatever Call does.
  virtual void cut(std::shared_ptr<const SequenceCut> cut) = 0;
};

// Options of prepare_training().
struct TrainOptions {
  // Type of the matrices; default: their stored type. kFloat8_e4m3fn: bf16, but the large products of layers in fp8 (sm90 only).
  std::optional<at::ScalarType> compute = {};
  std::string engine = "auto";
  bool recompute = false;  // activation checkpointing: recompute each layer in backward
  // Do not keep what one launch computes again from what is kept: normed rows, the product of a SwiGLU, the output gate and the gated rows,
  // and the convolved q, k and v. And not the outputs of a SwiGLU's gate and up projections, for a matrix product in backward. The results
  // have the same bits. The engine `portable` throws std::invalid_argument for both.
  bool recompute_rows = false, recompute_mlp = false;
};

// All training engines, for a model whose parameters are set.
std::vector<EngineOffer> train_engines(const CausalLM& model, std::optional<at::ScalarType> compute = std::nullopt);
// Creates a training engine. The model must outlive it, and its parameters must remain the same tensors; those in bf16 may move to the
// engine's memory. Throws as prepare_steps().
std::unique_ptr<TrainEngine> prepare_training(CausalLM& model, const TrainOptions& options = {});

// "auto" and the names of all engines, for help texts and option checks.
std::vector<std::string> engine_names();

}  // namespace cyfa
