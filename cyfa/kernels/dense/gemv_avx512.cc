// gemv for AVX-512; see gemv_impl.h.
#ifdef __AVX512F__
#include "cyfa/kernels/cpu/vec_avx512.h"
#include "cyfa/kernels/dense/gemv_impl.h"

namespace cyfa::dense {

void gemv_avx512(const Gemv& g, int64_t begin, int64_t end) { gemv<cpu::Avx512Vec>(g, begin, end); }

}  // namespace cyfa::dense
#else  // another architecture: isa_available() is false, and nobody calls this
#include "cyfa/kernels/dense/gemv_impl.h"

namespace cyfa::dense {

void gemv_avx512(const Gemv&, int64_t, int64_t) {}

}  // namespace cyfa::dense
#endif
