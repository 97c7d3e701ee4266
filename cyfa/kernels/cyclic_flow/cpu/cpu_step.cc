// Runtime dispatch of the CPU decoding step by instruction set, and the baseline version that runs on every CPU. Called by cyclic_flow_step
// (cyfa/ops/cyclic_flow/step.cc). step_cpu overwrites state_k, state_v, clock and o of the heads in its range, and the workspace.
#include <stdexcept>
#include <string>

#include "cyfa/kernels/cpu/vec_baseline.h"
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step_impl.h"

namespace cyfa::cyclic_flow {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("cyclic_flow: step_cpu: " + what); }

void check(const StepParams& p, int64_t begin, int64_t end, Isa isa) {
  if (!cpu::isa_available(isa)) {
    refuse(std::string("isa ") + isa_name(isa) + " is not available here; the best is " + isa_name(best_isa()));
  }
  if (p.M < 2 || p.M % 2 != 0) refuse("M is " + std::to_string(p.M) + "; wanted an even number of slots, at least 2");
  if (p.B < 0 || p.H < 0 || p.K < 1 || p.V < 1) {
    refuse("B, H, K, V are " + std::to_string(p.B) + ", " + std::to_string(p.H) + ", " + std::to_string(p.K) + ", " + std::to_string(p.V) +
           "; wanted K and V at least 1, B and H not negative");
  }
  if (begin < 0 || begin > end || end > p.B * p.H) {
    refuse("pairs " + std::to_string(begin) + " .. " + std::to_string(end) + " are not within 0 .. B * H = " + std::to_string(p.B * p.H));
  }
}

}  // namespace

int64_t step_workspace_floats(const StepParams& p) { return cpu_step::Workspace::floats(p); }

void step_cpu(const StepParams& p, int64_t begin, int64_t end, float* workspace, Isa isa) {
  check(p, begin, end, isa);
  switch (isa) {
    case Isa::kBaseline: cpu_step::step_pairs<cpu::BaselineVec>(p, begin, end, workspace); return;
    case Isa::kAvx2: cpu_step::step_avx2(p, begin, end, workspace); return;
    case Isa::kAvx512: cpu_step::step_avx512(p, begin, end, workspace); return;
  }
}

}  // namespace cyfa::cyclic_flow
