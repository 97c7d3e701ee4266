// The sm90 engine in builds without CUDA: it refuses every model, so nothing else is called.
#include <stdexcept>

#include "cyfa/engine/sm90/sm90.h"

namespace cyfa::fused {
namespace {

constexpr const char* kReason = "this build has no CUDA kernels";

}  // namespace

std::string step_refusal(const CausalLM&, std::optional<at::ScalarType>) { return kReason; }
std::unique_ptr<StepEngine> prepare_steps(CausalLM&, const StepOptions&) { throw std::logic_error(kReason); }
std::string train_refusal(const CausalLM&, std::optional<at::ScalarType>) { return kReason; }
std::unique_ptr<TrainEngine> prepare_training(CausalLM&, const TrainOptions&) { throw std::logic_error(kReason); }

}  // namespace cyfa::fused
