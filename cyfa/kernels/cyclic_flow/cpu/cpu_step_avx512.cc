// The decoding step of cyclic_flow for AVX-512; what it overwrites is said in cpu_step_impl.h.
// Compiled with -mavx512f -mavx512dq -mavx512vl -mfma.
#ifdef __AVX512F__
#include "cyfa/kernels/cpu/vec_avx512.h"
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step_impl.h"

namespace cyfa::cyclic_flow::cpu_step {

void step_avx512(const StepParams& p, int64_t begin, int64_t end, float* workspace) {
  step_pairs<cpu::Avx512Vec>(p, begin, end, workspace);
}

}  // namespace cyfa::cyclic_flow::cpu_step
#else  // another architecture: isa_available() is false, and nobody calls this
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step_impl.h"

namespace cyfa::cyclic_flow::cpu_step {

void step_avx512(const StepParams&, int64_t, int64_t, float*) {}

}  // namespace cyfa::cyclic_flow::cpu_step
#endif
