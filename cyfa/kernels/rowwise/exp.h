// exp for loops that the compiler vectorises. Included by files with CYFA_CLONES functions, into which it is inlined.
#pragma once

#include <bit>
#include <cstdint>

namespace cyfa::rowwise {
namespace {

// exp(x) for x <= 0, accurate to one or two units in the last place; 0 below -87. Branch-free arithmetic, so that loops around it
// vectorise.
inline float exp_of_negative(float x) {
  constexpr float kLog2e = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to the nearest integer
  const float bounded = x < -87.0F ? -87.0F : x;
  const float shifted = bounded * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = bounded - n * kLn2High - n * kLn2Low;
  float p = 1.98756915e-4F;
  p = p * r + 1.39819995e-3F;
  p = p * r + 8.33345190e-3F;
  p = p * r + 4.16657962e-2F;
  p = p * r + 1.66666655e-1F;
  p = p * r + 5.00000012e-1F;
  const float mantissa = p * r * r + r + 1.0F;
  const int32_t bits = std::bit_cast<int32_t>(mantissa) + (std::bit_cast<int32_t>(shifted) << 23);
  return x < -87.0F ? 0.0F : std::bit_cast<float>(bits);
}

}  // namespace
}  // namespace cyfa::rowwise
