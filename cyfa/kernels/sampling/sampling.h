// The arithmetic of sampling, for the CPU (cyfa/decode/sampler.cc) and for CUDA (sample_cuda.cu). Everything after the logits is integer,
// or rounded once per operation as IEEE says, and integers are summed exactly in any order: equal logits give equal tokens on every device.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define CYFA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define CYFA_HOST_DEVICE inline
#endif

namespace cyfa::sampling {

// How a token is chosen, from SamplingOptions (cyfa/decode/sampler.h).
struct Rule {
  bool greedy = true;       // the largest logit; of equal ones the smallest id. The values below but `penalty` are then unused
  float penalty = 1;        // divides positive and multiplies negative logits of tokens that have occurred
  float scale = 0;          // log2(e) / temperature
  int64_t top_k = 0;        // keeps the k largest logits; 0 keeps all
  uint32_t farthest = ~0U;  // keeps tokens up to this distance from the best (min_p)
  double top_p = 1;         // keeps the fewest of the nearest tokens with this share of the remaining weight
  uint64_t seed = 0;
};

CYFA_HOST_DEVICE uint32_t high_product(uint32_t a, uint32_t b) { return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32); }

// The upper 64 bits of a 128-bit product.
CYFA_HOST_DEVICE uint64_t high_product(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xFFFFFFFFU, a1 = a >> 32, b0 = b & 0xFFFFFFFFU, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
  return a1 * b1 + (middle >> 32) + ((a0 * b1 + (middle & 0xFFFFFFFFU)) >> 32);
}

// 64 random bits of the token at `position` of a sequence: the counter-based generator Philox4x32-10 (Salmon et al., 2011). They depend on
// nothing else, so neither the batch nor an interruption changes them.
CYFA_HOST_DEVICE uint64_t random_bits(uint64_t seed, uint64_t position) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint32_t low0 = 0xD2511F53U * c0, high0 = high_product(0xD2511F53U, c0);
    const uint32_t low1 = 0xCD9E8D57U * c2, high1 = high_product(0xCD9E8D57U, c2);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c0 | (static_cast<uint64_t>(c1) << 32);
}

// The logit that is compared: NaN becomes -inf, -0 becomes 0, and the penalty applies to tokens that have occurred.
CYFA_HOST_DEVICE float adjusted(float logit, bool seen, float penalty) {
  if (std::isnan(logit)) return -INFINITY;
  if (seen) logit = logit > 0 ? logit / penalty : logit * penalty;
  return logit + 0.0F;
}

// Distances are in octaves of probability below the best token, in units of 2^-26.
constexpr int kOctaveBits = 26;
constexpr uint32_t kNever = 63U << kOctaveBits;  // weight 0

CYFA_HOST_DEVICE uint32_t distance(float best, float logit, float scale) {
  const float octaves = (best - logit) * scale;
  return octaves < 63.0F ? static_cast<uint32_t>(octaves * 0x1p26F) : kNever;
}

// 2^40 times the probability relative to the best token's: 2^-distance by a polynomial in the fraction of an octave, with a relative error
// of 5e-9 above 2^-8 and below one unit always. Never increases with the distance; below 2^40, so that 2^24 weights can be added.
CYFA_HOST_DEVICE uint64_t weight(uint32_t distance) {
  const uint32_t f = distance << (32 - kOctaveBits), octaves = distance >> kOctaveBits;
  uint32_t p = 0x53'9803U - high_product(f, 0x7'2A3CU);
  p = 0x273'D361U - high_product(f, p);
  p = 0xE34'A75BU - high_product(f, p);
  p = 0x3D7F'577EU - high_product(f, p);
  p = 0xB172'15B2U - high_product(f, p);
  p = 0xFFFF'FFFFU - high_product(f, p);
  return (static_cast<uint64_t>(p) << 8) >> octaves;
}

// The weight at which top_p may stop adding tokens.
CYFA_HOST_DEVICE uint64_t top_p_target(double top_p, uint64_t total) {
  const auto target = static_cast<uint64_t>(top_p * static_cast<double>(total));
  return target < 1 ? 1 : target < total ? target : total;
}

// Which unit of `total` weight is drawn.
CYFA_HOST_DEVICE uint64_t drawn_point(const Rule& rule, uint64_t position, uint64_t total) {
  return high_product(random_bits(rule.seed, position), total);
}

}  // namespace cyfa::sampling
