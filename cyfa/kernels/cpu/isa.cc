// Run-time detection of the CPU's instruction sets; see isa.h.
#include "cyfa/kernels/cpu/isa.h"

namespace cyfa::cpu {

bool isa_available(Isa isa) {
#if defined(__x86_64__)  // the AVX source files are compiled with AVX flags on this architecture only
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  const bool avx2 = false;
  const bool avx512 = false;
#endif
  switch (isa) {
    case Isa::kBaseline: return true;
    case Isa::kAvx2: return avx2;
    case Isa::kAvx512: return avx512;
  }
  return false;
}

Isa best_isa() {
  if (isa_available(Isa::kAvx512)) return Isa::kAvx512;
  if (isa_available(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kBaseline;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return "baseline";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "unknown";
}

}  // namespace cyfa::cpu
