// The engine for Hopper GPUs (H100, H200), with matrices in bf16. Projections of one input are one fused matrix; a decoding step is five or
// six launches a layer at small batches; in training, gradients of weights are summed in fp32 by the products themselves.
//
// Any mixer may stand in the layers: one that has no fused kernels runs as the plain model does, between fused norms and SwiGLUs.
// Without CUDA in the build, everything is refused.
#pragma once

#include "cyfa/engine/engine.h"

namespace cyfa::fused {

std::string step_refusal(const CausalLM& model, std::optional<at::ScalarType> compute);
std::unique_ptr<StepEngine> prepare_steps(CausalLM& model, std::optional<at::ScalarType> compute);

std::string train_refusal(const CausalLM& model, std::optional<at::ScalarType> compute);
std::unique_ptr<TrainEngine> prepare_training(CausalLM& model, std::optional<at::ScalarType> compute, bool recompute);

}  // namespace cyfa::fused
