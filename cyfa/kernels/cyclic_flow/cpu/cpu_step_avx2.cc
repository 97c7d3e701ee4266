// The decoding step of cyclic_flow for AVX2 with FMA; what it overwrites is said in cpu_step_impl.h. Compiled with -mavx2 -mfma.
#ifdef __AVX2__
#include "cyfa/kernels/cpu/vec_avx2.h"
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step_impl.h"

namespace cyfa::cyclic_flow::cpu_step {

void step_avx2(const StepParams& p, int64_t begin, int64_t end, float* workspace) { step_pairs<cpu::Avx2Vec>(p, begin, end, workspace); }

}  // namespace cyfa::cyclic_flow::cpu_step
#else  // another architecture: isa_available() is false, and nobody calls this
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step_impl.h"

namespace cyfa::cyclic_flow::cpu_step {

void step_avx2(const StepParams&, int64_t, int64_t, float*) {}

}  // namespace cyfa::cyclic_flow::cpu_step
#endif
