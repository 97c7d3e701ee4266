// The portable engine: the plain model of cyfa/model, for every mixer and device.
#pragma once

#include "cyfa/engine/engine.h"

namespace cyfa::portable {

std::string refusal(const CausalLM& model, std::optional<at::ScalarType> compute);  // always empty
// The engines for decoding and for training.
std::unique_ptr<StepEngine> prepare_steps(CausalLM& model, const StepOptions& options);
std::unique_ptr<TrainEngine> prepare_training(CausalLM& model, const TrainOptions& options);

}  // namespace cyfa::portable
