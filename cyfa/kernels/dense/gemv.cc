// Choice of instruction set for gemv, and the version that every CPU runs.
#include <stdexcept>
#include <string>

#include "cyfa/kernels/cpu/vec_baseline.h"
#include "cyfa/kernels/dense/gemv_impl.h"

namespace cyfa::dense {

void gemv_cpu(const Gemv& g, int64_t begin, int64_t end, cpu::Isa isa) {
  if (!cpu::isa_available(isa)) throw std::invalid_argument(std::string("gemv: isa ") + cpu::isa_name(isa) + " is not available here");
  if (begin < 0 || begin > end || end > g.out) {
    throw std::invalid_argument("gemv: rows " + std::to_string(begin) + " .. " + std::to_string(end) + " are not within 0 .. " + std::to_string(g.out));
  }
  switch (isa) {
    case cpu::Isa::kBaseline:
      gemv<cpu::BaselineVec>(g, begin, end);
      return;
    case cpu::Isa::kAvx2:
      gemv_avx2(g, begin, end);
      return;
    case cpu::Isa::kAvx512:
      gemv_avx512(g, begin, end);
      return;
  }
}

}  // namespace cyfa::dense
