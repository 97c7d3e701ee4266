// gemv_impl.h compiled for AVX-512.
#ifdef __AVX512F__
#include "cyfa/kernels/cpu/vec_avx512.h"
#include "cyfa/kernels/dense/gemv_impl.h"

namespace cyfa::dense {

void gemv_avx512(const Gemv& g, int64_t begin, int64_t end) { gemv<cpu::Avx512Vec>(g, begin, end); }

}  // namespace cyfa::dense
#else  // other architectures: never called, because isa_available() is false
#include "cyfa/kernels/dense/gemv_impl.h"

namespace cyfa::dense {

void gemv_avx512(const Gemv&, int64_t, int64_t) {}

}  // namespace cyfa::dense
#endif
