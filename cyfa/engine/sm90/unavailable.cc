// For builds without CUDA: nothing is taken, so nothing else is called.
#include "cyfa/engine/sm90/decode_rows.h"
#include "cyfa/engine/sm90/decode_step.h"
#include "cyfa/engine/sm90/packed.h"

namespace cyfa::ops {
namespace {

[[noreturn]] void absent() { throw std::logic_error("sm90: this build has no CUDA"); }

}  // namespace

bool packs_on(at::Device) { return false; }
bool packs_norm(int64_t) { return false; }
bool packs_columns(int64_t) { return false; }
bool packs_conv(int64_t, int64_t) { return false; }
at::Tensor linear(const at::Tensor&, const Summed&) { absent(); }
at::Tensor swiglu_halves(const at::Tensor&) { absent(); }
AddedNorm add_rms_norm(const at::Tensor&, const at::Tensor&, const Summed&, double) { absent(); }
at::Tensor gated_rms_norm(const at::Tensor&, const Summed&, double, const at::Tensor&, const at::Tensor&) { absent(); }
FlowStreams flow_streams(const at::Tensor&, const FlowWeights&, const std::optional<at::Tensor>&) { absent(); }
FlowStreams flow_step(const at::Tensor&, const FlowWeights&, const std::array<at::Tensor, 3>&) { absent(); }
at::Tensor linear_cross_entropy(const at::Tensor&, const Summed&, const at::Tensor&) { absent(); }
bool few_rows(const at::Tensor&) { return false; }
bool add_flow_step(const at::Tensor&, const StepNorm&, const FlowStep&, const at::Tensor&) { return false; }
bool add_swiglu_step(const at::Tensor&, const StepNorm&, const at::Tensor&, const at::Tensor&, const at::Tensor&) { return false; }
at::Tensor head_step(const at::Tensor&, const StepNorm&, const at::Tensor&) { return {}; }
at::Tensor flow_step_gated(const at::Tensor&, const FlowStep&) { return {}; }
bool some_rows(const at::Tensor&) { return false; }
StepRows begin_rows(const at::Tensor&, const StepNorm&) { absent(); }
bool add_flow_rows(StepRows&, const FlowStep&, const StepNorm&) { return false; }
bool add_swiglu_rows(StepRows&, const at::Tensor&, const at::Tensor&, const StepNorm&) { return false; }

}  // namespace cyfa::ops
