// product_impl.h compiled for AVX-512.
#ifdef __AVX512F__
#include "cyfa/kernels/cpu/vec_avx512.h"
#include "cyfa/kernels/dense/product_impl.h"

namespace cyfa::dense {

void product_avx512(const Product& p) { product_of<cpu::Avx512Vec>(p); }
void transpose_avx512(int64_t rows, int64_t columns, const float* from, float* to) {
  transpose_of<cpu::Avx512Vec>(rows, columns, from, to);
}

}  // namespace cyfa::dense
#else  // other architectures: never called, because isa_available() is false
#include "cyfa/kernels/dense/product_impl.h"

namespace cyfa::dense {

void product_avx512(const Product&) {}
void transpose_avx512(int64_t, int64_t, const float*, float*) {}

}  // namespace cyfa::dense
#endif
