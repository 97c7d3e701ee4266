// Instruction sets that both this CPU and this build support. Used by the CPU kernels to choose an implementation, by the tests, and by the
// program to report it.
#pragma once

namespace cyfa::cpu {

// kAvx2 implies FMA. kAvx512 means F, DQ and VL.
enum class Isa { kBaseline, kAvx2, kAvx512 };

// Whether kernels compiled for `isa` run here. Always true for kBaseline; false for the AVX sets on other architectures than x86-64.
bool isa_available(Isa isa);
// The widest available instruction set.
Isa best_isa();
const char* isa_name(Isa isa);  // "baseline", "avx2", "avx512"

}  // namespace cyfa::cpu
