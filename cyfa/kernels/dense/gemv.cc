// CPU matrix-vector product (gemv.h): choice of the instruction set, argument checks, and the baseline version.
#include <stdexcept>
#include <string>

#include "cyfa/kernels/cpu/vec_baseline.h"
#include "cyfa/kernels/dense/gemv_impl.h"

namespace cyfa::dense {

void interleave_vectors(int64_t batch, int64_t in, const float* x, float* interleaved) {
  for (int64_t begin = 0; begin < in; begin += kInterleave) {
    for (int64_t b = 0; b < batch; ++b, interleaved += kInterleave) {
      for (int64_t i = 0; i < kInterleave; ++i) interleaved[i] = begin + i < in ? x[b * in + begin + i] : 0.0F;
    }
  }
}

void gemv_cpu(const Gemv& g, int64_t begin, int64_t end, cpu::Isa isa) {
  if (!cpu::isa_available(isa)) throw std::invalid_argument(std::string("gemv: isa ") + cpu::isa_name(isa) + " is not available here");
  if (begin < 0 || begin > end || end > g.out) {
    throw std::invalid_argument("gemv: rows " + std::to_string(begin) + " .. " + std::to_string(end) + " are not within 0 .. " +
                                std::to_string(g.out));
  }
  switch (isa) {
    case cpu::Isa::kBaseline: gemv<cpu::BaselineVec>(g, begin, end); return;
    case cpu::Isa::kAvx2: gemv_avx2(g, begin, end); return;
    case cpu::Isa::kAvx512: gemv_avx512(g, begin, end); return;
  }
}

}  // namespace cyfa::dense
