// A vector of fp32 lanes in AVX2 with FMA. CPU kernels (gemv, the cyclic_flow step) are templates over a vector type with this interface:
//   load, store             kWidth contiguous floats, unaligned; load_bf16 widens kWidth bf16 numbers
//   load_first, store_first the first `count` lanes, for row ends; the other lanes are loaded as zero
//   sum, top                sum and maximum of the lanes
//   add, mul, fma, max      lane by lane; fma(a, b, c) = a b + c
//   add_to_exponent(a, n)   adds the integers in the low bits of n to the exponents of a
// Included only by files that are compiled for this instruction set. They are linked with files compiled for other sets, so everything is
// in an anonymous namespace: the linker must not merge functions across instruction sets.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace cyfa::cpu {
namespace {

struct Avx2Vec {
  static constexpr int64_t kWidth = 8;
  __m256 x;

  static Avx2Vec zero() { return {_mm256_setzero_ps()}; }
  static Avx2Vec broadcast(float value) { return {_mm256_set1_ps(value)}; }
  static Avx2Vec load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Avx2Vec load_first(const float* from, int64_t count) { return {_mm256_maskload_ps(from, first(count))}; }
  // bf16 is the upper half of a float.
  static Avx2Vec load_bf16(const uint16_t* from) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
  }
  void store(float* to) const { _mm256_storeu_ps(to, x); }
  void store_first(float* to, int64_t count) const { _mm256_maskstore_ps(to, first(count), x); }
  static float sum(Avx2Vec v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v.x), _mm256_extractf128_ps(v.x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float top(Avx2Vec v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v.x), _mm256_extractf128_ps(v.x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

 private:
  static __m256i first(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};
inline Avx2Vec add(Avx2Vec a, Avx2Vec b) { return {_mm256_add_ps(a.x, b.x)}; }
inline Avx2Vec mul(Avx2Vec a, Avx2Vec b) { return {_mm256_mul_ps(a.x, b.x)}; }
inline Avx2Vec fma(Avx2Vec a, Avx2Vec b, Avx2Vec c) { return {_mm256_fmadd_ps(a.x, b.x, c.x)}; }
inline Avx2Vec max(Avx2Vec a, Avx2Vec b) { return {_mm256_max_ps(a.x, b.x)}; }
inline Avx2Vec add_to_exponent(Avx2Vec a, Avx2Vec n) {
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.x), _mm256_slli_epi32(_mm256_castps_si256(n.x), 23)))};
}

}  // namespace
}  // namespace cyfa::cpu
