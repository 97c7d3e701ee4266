// Products of small matrices (product.h): choice of the instruction set, and the baseline version.
#include <stdexcept>
#include <string>

#include "cyfa/kernels/cpu/vec_baseline.h"
#include "cyfa/kernels/dense/product_impl.h"

namespace cyfa::dense {

namespace {

void check(cpu::Isa isa) {
  if (!cpu::isa_available(isa)) throw std::invalid_argument(std::string("product: isa ") + cpu::isa_name(isa) + " is not available here");
}

}  // namespace

void product(const Product& p, cpu::Isa isa) {
  check(isa);
  switch (isa) {
    case cpu::Isa::kBaseline: product_of<cpu::BaselineVec>(p); return;
    case cpu::Isa::kAvx2: product_avx2(p); return;
    case cpu::Isa::kAvx512: product_avx512(p); return;
  }
}

void transpose(int64_t rows, int64_t columns, const float* from, float* to, cpu::Isa isa) {
  check(isa);
  switch (isa) {
    case cpu::Isa::kBaseline: transpose_of<cpu::BaselineVec>(rows, columns, from, to); return;
    case cpu::Isa::kAvx2: transpose_avx2(rows, columns, from, to); return;
    case cpu::Isa::kAvx512: transpose_avx512(rows, columns, from, to); return;
  }
}

}  // namespace cyfa::dense
