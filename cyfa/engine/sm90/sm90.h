// The engine for Hopper GPUs (H100, H200), with matrices in bf16. Projections of the same input are fused into one matrix. At small batches
// a decode step takes five or six launches per layer, and on request that of one sequence one in all. In training, the matrix products
// accumulate weight gradients directly in fp32.
//
// Layers may have any mixer: one without fused kernels runs as in the plain model, between fused norms and SwiGLUs. In a build without
// CUDA, the engine refuses every model.
#pragma once

#include "cyfa/engine/engine.h"

namespace cyfa::fused {

class WholeStep;

// Why the engine cannot run the model (empty if it can), and the engine itself: for decoding and for training.
std::string step_refusal(const CausalLM& model, std::optional<at::ScalarType> compute);
std::unique_ptr<StepEngine> prepare_steps(CausalLM& model, const StepOptions& options);
// The step of one sequence as one launch, of an engine that is not recorded; null if it has none. For tests.
WholeStep* whole_step_of(StepEngine& engine);

std::string train_refusal(const CausalLM& model, std::optional<at::ScalarType> compute);
std::unique_ptr<TrainEngine> prepare_training(CausalLM& model, const TrainOptions& options);

}  // namespace cyfa::fused
