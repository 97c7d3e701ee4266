// The decoding step of cyclic_flow for AVX2 with FMA; what it overwrites is said in cpu_step_impl.h. Compiled with -mavx2 -mfma.
#include "cyfa/kernels/cyclic_flow/cpu_step_impl.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace cyfa::cyclic_flow::cpu_step {
namespace {

struct Avx2Vec {
  static constexpr int64_t kWidth = 8;
  __m256 x;

  static Avx2Vec zero() { return {_mm256_setzero_ps()}; }
  static Avx2Vec broadcast(float value) { return {_mm256_set1_ps(value)}; }
  static Avx2Vec load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Avx2Vec load_first(const float* from, int64_t count) { return {_mm256_maskload_ps(from, first(count))}; }
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
Avx2Vec add(Avx2Vec a, Avx2Vec b) { return {_mm256_add_ps(a.x, b.x)}; }
Avx2Vec mul(Avx2Vec a, Avx2Vec b) { return {_mm256_mul_ps(a.x, b.x)}; }
Avx2Vec fma(Avx2Vec a, Avx2Vec b, Avx2Vec c) { return {_mm256_fmadd_ps(a.x, b.x, c.x)}; }
Avx2Vec max(Avx2Vec a, Avx2Vec b) { return {_mm256_max_ps(a.x, b.x)}; }
Avx2Vec add_to_exponent(Avx2Vec a, Avx2Vec n) {
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.x), _mm256_slli_epi32(_mm256_castps_si256(n.x), 23)))};
}

}  // namespace

const bool kAvx2Compiled = true;
void step_avx2(const StepParams& p, int64_t begin, int64_t end, float* workspace) { step_pairs<Avx2Vec>(p, begin, end, workspace); }

}  // namespace cyfa::cyclic_flow::cpu_step

#else

namespace cyfa::cyclic_flow::cpu_step {

const bool kAvx2Compiled = false;
void step_avx2(const StepParams&, int64_t, int64_t, float*) {}

}  // namespace cyfa::cyclic_flow::cpu_step

#endif
