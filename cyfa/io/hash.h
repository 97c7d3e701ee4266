// A fast 64-bit hash for telling files and models apart; not for use against an adversary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cyfa::io {

uint64_t hash64(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t hash64(std::string_view text, uint64_t seed = 0);

}  // namespace cyfa::io
