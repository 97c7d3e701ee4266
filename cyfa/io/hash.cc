// See hash.h. Stored hashes (of token folders, saved states) depend on this function: it must not change.
#include "cyfa/io/hash.h"

#include <bit>
#include <cstring>

namespace cyfa::io {
namespace {

// Odd constants without structure (fractional digits of square roots of primes).
constexpr uint64_t kA = 0x6A09E667F3BCC909, kB = 0xBB67AE8584CAA73B, kC = 0x3C6EF372FE94F82B, kD = 0xA54FF53A5F1D36F1;

uint64_t word_at(const std::byte* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

uint64_t mixed(uint64_t state, uint64_t word) { return std::rotl((state ^ word) * kA, 29) * kB; }

// Final mixing: every bit of the result depends on every bit of x.
uint64_t finished(uint64_t x) {
  x ^= x >> 32;
  x *= kC;
  x ^= x >> 29;
  x *= kD;
  return x ^ (x >> 32);
}

}  // namespace

uint64_t hash64(std::span<const std::byte> bytes, uint64_t seed) {
  // Four independent lanes, so that multiplications overlap.
  uint64_t lane[4] = {seed ^ kA, seed ^ kB, seed ^ kC, seed ^ kD};
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 32; left -= 32, at += 32) {
    for (int i = 0; i < 4; ++i) lane[i] = mixed(lane[i], word_at(at + 8 * i));
  }
  std::byte last[32] = {};
  if (left > 0) std::memcpy(last, at, left);
  for (int i = 0; i < 4; ++i) lane[i] = mixed(lane[i], word_at(last + 8 * i));
  uint64_t sum = finished(bytes.size());
  for (const uint64_t one : lane) sum = finished(sum ^ one);
  return sum;
}

uint64_t hash64(std::string_view text, uint64_t seed) { return hash64(std::as_bytes(std::span(text)), seed); }

}  // namespace cyfa::io
