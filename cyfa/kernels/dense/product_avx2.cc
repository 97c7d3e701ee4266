// product_impl.h compiled for AVX2 with FMA.
#ifdef __AVX2__
#include "cyfa/kernels/cpu/vec_avx2.h"
#include "cyfa/kernels/dense/product_impl.h"

namespace cyfa::dense {

void product_avx2(const Product& p) { product_of<cpu::Avx2Vec>(p); }
void transpose_avx2(int64_t rows, int64_t columns, const float* from, float* to) { transpose_of<cpu::Avx2Vec>(rows, columns, from, to); }

}  // namespace cyfa::dense
#else  // other architectures: never called, because isa_available() is false
#include "cyfa/kernels/dense/product_impl.h"

namespace cyfa::dense {

void product_avx2(const Product&) {}
void transpose_avx2(int64_t, int64_t, const float*, float*) {}

}  // namespace cyfa::dense
#endif
