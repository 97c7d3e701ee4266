// A vector of fp32 lanes in AVX-512 (F, DQ, VL), with the interface described in vec_avx2.h.
// Included only by files that are compiled for this instruction set. They are linked with files compiled for other sets, so everything is
// in an anonymous namespace: the linker must not merge functions across instruction sets.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace cyfa::cpu {
namespace {

struct Avx512Vec {
  static constexpr int64_t kWidth = 16;
  __m512 x;

  static Avx512Vec zero() { return {_mm512_setzero_ps()}; }
  static Avx512Vec broadcast(float value) { return {_mm512_set1_ps(value)}; }
  static Avx512Vec load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Avx512Vec load_first(const float* from, int64_t count) { return {_mm512_maskz_loadu_ps(first(count), from)}; }
  // bf16 is the upper half of a float.
  static Avx512Vec load_bf16(const uint16_t* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, halves), 16))};
  }
  void store(float* to) const { _mm512_storeu_ps(to, x); }
  void store_first(float* to, int64_t count) const { _mm512_mask_storeu_ps(to, first(count), x); }
  static float sum(Avx512Vec v) {
    const __m256 eight = _mm256_add_ps(half<0>(v), half<1>(v));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float top(Avx512Vec v) {
    const __m256 eight = _mm256_max_ps(half<0>(v), half<1>(v));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

 private:
  // Masked with all lanes set: for the unmasked intrinsics GCC 12 warns about an uninitialised value inside its own header.
  template <int kHalf>
  static __m256 half(Avx512Vec v) {
    return _mm512_maskz_extractf32x8_ps(0xFF, v.x, kHalf);
  }
  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1U << count) - 1U); }
};
inline Avx512Vec add(Avx512Vec a, Avx512Vec b) { return {_mm512_add_ps(a.x, b.x)}; }
inline Avx512Vec mul(Avx512Vec a, Avx512Vec b) { return {_mm512_mul_ps(a.x, b.x)}; }
inline Avx512Vec fma(Avx512Vec a, Avx512Vec b, Avx512Vec c) { return {_mm512_fmadd_ps(a.x, b.x, c.x)}; }
inline Avx512Vec max(Avx512Vec a, Avx512Vec b) { return {_mm512_maskz_max_ps(0xFFFF, a.x, b.x)}; }
inline Avx512Vec add_to_exponent(Avx512Vec a, Avx512Vec n) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.x), _mm512_maskz_slli_epi32(0xFFFF, _mm512_castps_si512(n.x), 23)))};
}

}  // namespace
}  // namespace cyfa::cpu
