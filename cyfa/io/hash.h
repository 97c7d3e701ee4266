// A fast 64-bit hash that identifies files, models and documents; not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cyfa::io {

// The hash of the bytes. Different seeds give independent hashes.
uint64_t hash64(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t hash64(std::string_view text, uint64_t seed = 0);

}  // namespace cyfa::io
