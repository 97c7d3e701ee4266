// Choice of instruction set for the decoding step of cyclic_flow, and the version that every CPU runs.
// step_cpu overwrites state_k, state_v, clock and o of the heads in its range, and the workspace.
#include <stdexcept>
#include <string>

#include "cyfa/kernels/cyclic_flow/cpu_step_impl.h"

namespace cyfa::cyclic_flow {
namespace {

// Four lanes of the compiler's own vector type: SSE on x86-64, NEON on arm64.
struct BaselineVec {
  static constexpr int64_t kWidth = 4;
  using Lanes __attribute__((vector_size(16))) = float;
  using Bits __attribute__((vector_size(16))) = uint32_t;
  Lanes x;

  static BaselineVec zero() { return {Lanes{0.0F, 0.0F, 0.0F, 0.0F}}; }
  static BaselineVec broadcast(float value) { return {Lanes{value, value, value, value}}; }
  static BaselineVec load(const float* from) {
    BaselineVec v;
    __builtin_memcpy(&v.x, from, sizeof(v.x));
    return v;
  }
  static BaselineVec load_first(const float* from, int64_t count) {
    BaselineVec v = zero();
    for (int64_t i = 0; i < count; ++i) v.x[i] = from[i];
    return v;
  }
  void store(float* to) const { __builtin_memcpy(to, &x, sizeof(x)); }
  void store_first(float* to, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) to[i] = x[i];
  }
  static float sum(BaselineVec v) { return (v.x[0] + v.x[2]) + (v.x[1] + v.x[3]); }
  static float top(BaselineVec v) {
    float most = v.x[0];
    for (int64_t i = 1; i < kWidth; ++i) most = v.x[i] > most ? v.x[i] : most;
    return most;
  }
};
BaselineVec add(BaselineVec a, BaselineVec b) { return {a.x + b.x}; }
BaselineVec mul(BaselineVec a, BaselineVec b) { return {a.x * b.x}; }
BaselineVec fma(BaselineVec a, BaselineVec b, BaselineVec c) { return {a.x * b.x + c.x}; }
BaselineVec max(BaselineVec a, BaselineVec b) { return {a.x > b.x ? a.x : b.x}; }
BaselineVec add_to_exponent(BaselineVec a, BaselineVec n) {
  using Lanes = BaselineVec::Lanes;
  using Bits = BaselineVec::Bits;
  return {__builtin_bit_cast(Lanes, __builtin_bit_cast(Bits, a.x) + (__builtin_bit_cast(Bits, n.x) << 23))};
}

bool available(Isa isa) {
#if defined(__x86_64__) || defined(__i386__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  const bool avx2 = false;
  const bool avx512 = false;
#endif
  switch (isa) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      return cpu_step::kAvx2Compiled && avx2;
    case Isa::kAvx512:
      return cpu_step::kAvx512Compiled && avx512;
  }
  return false;
}

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("cyclic_flow: step_cpu: " + what); }

void check(const StepParams& p, int64_t begin, int64_t end, Isa isa) {
  if (!available(isa)) {
    refuse(std::string("isa ") + isa_name(isa) + " is not available here; the best is " + isa_name(best_isa()));
  }
  if (p.M < 2 || p.M % 2 != 0) refuse("M is " + std::to_string(p.M) + "; wanted an even number of slots, at least 2");
  if (p.B < 0 || p.H < 0 || p.K < 1 || p.V < 1) {
    refuse("B, H, K, V are " + std::to_string(p.B) + ", " + std::to_string(p.H) + ", " + std::to_string(p.K) + ", " + std::to_string(p.V) +
           "; wanted K and V at least 1, B and H not negative");
  }
  if (begin < 0 || begin > end || end > p.B * p.H) {
    refuse("pairs " + std::to_string(begin) + " .. " + std::to_string(end) + " are not within 0 .. B * H = " + std::to_string(p.B * p.H));
  }
}

}  // namespace

Isa best_isa() {
  if (available(Isa::kAvx512)) return Isa::kAvx512;
  if (available(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kBaseline;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

int64_t step_workspace_floats(const StepParams& p) { return cpu_step::Workspace::floats(p); }

void step_cpu(const StepParams& p, int64_t begin, int64_t end, float* workspace, Isa isa) {
  check(p, begin, end, isa);
  switch (isa) {
    case Isa::kBaseline:
      cpu_step::step_pairs<BaselineVec>(p, begin, end, workspace);
      return;
    case Isa::kAvx2:
      cpu_step::step_avx2(p, begin, end, workspace);
      return;
    case Isa::kAvx512:
      cpu_step::step_avx512(p, begin, end, workspace);
      return;
  }
}

}  // namespace cyfa::cyclic_flow
