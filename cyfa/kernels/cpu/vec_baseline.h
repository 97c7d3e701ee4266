// A vector of fp32 lanes for every CPU, with the interface described in vec_avx2.h.
// Included only by files that are compiled for the baseline instruction set. They are linked with files compiled for other sets, so
// everything is in an anonymous namespace: the linker must not merge functions across instruction sets.
#pragma once

#include <stdint.h>

namespace cyfa::cpu {
namespace {

// Four lanes of GCC's vector extension: SSE on x86-64, NEON on arm64.
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
  // bf16 is the upper half of a float.
  static BaselineVec load_bf16(const uint16_t* from) {
    Bits bits = {from[0], from[1], from[2], from[3]};
    bits <<= 16;
    return {__builtin_bit_cast(Lanes, bits)};
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
inline BaselineVec add(BaselineVec a, BaselineVec b) { return {a.x + b.x}; }
inline BaselineVec mul(BaselineVec a, BaselineVec b) { return {a.x * b.x}; }
inline BaselineVec fma(BaselineVec a, BaselineVec b, BaselineVec c) { return {a.x * b.x + c.x}; }
inline BaselineVec max(BaselineVec a, BaselineVec b) { return {a.x > b.x ? a.x : b.x}; }
inline BaselineVec add_to_exponent(BaselineVec a, BaselineVec n) {
  using Lanes = BaselineVec::Lanes;
  using Bits = BaselineVec::Bits;
  return {__builtin_bit_cast(Lanes, __builtin_bit_cast(Bits, a.x) + (__builtin_bit_cast(Bits, n.x) << 23))};
}

}  // namespace
}  // namespace cyfa::cpu
