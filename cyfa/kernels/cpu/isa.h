// Which instruction sets this CPU and this build have between them.
#pragma once

namespace cyfa::cpu {

enum class Isa { kBaseline, kAvx2, kAvx512 };

bool isa_available(Isa isa);
Isa best_isa();
const char* isa_name(Isa isa);  // "baseline", "avx2", "avx512"

}  // namespace cyfa::cpu
