// The CPU decoding step compiled for AVX2 with FMA (-mavx2 -mfma). Called by step_cpu; cpu_step_impl.h says what it overwrites.
#ifdef __AVX2__
#include "cyfa/kernels/cpu/vec_avx2.h"
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step_impl.h"

namespace cyfa::cyclic_flow::cpu_step {

void step_avx2(const StepParams& p, int64_t begin, int64_t end, float* workspace) { step_pairs<cpu::Avx2Vec>(p, begin, end, workspace); }

}  // namespace cyfa::cyclic_flow::cpu_step
#else  // other architectures: isa_available() is false, so this is never called
#include "cyfa/kernels/cyclic_flow/cpu/cpu_step_impl.h"

namespace cyfa::cyclic_flow::cpu_step {

void step_avx2(const StepParams&, int64_t, int64_t, float*) {}

}  // namespace cyfa::cyclic_flow::cpu_step
#endif
