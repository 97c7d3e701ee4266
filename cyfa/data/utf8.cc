// See utf8.h.
#include "cyfa/data/utf8.h"

#include <cstdint>
#include <cstring>

namespace cyfa {
namespace {

struct Scan {
  size_t length;    // bytes examined: a character, or the available part of one
  bool valid;       // a complete character
  bool incomplete;  // the text ended inside a sequence that could become a character
};

// Examines the character at bytes[0], by the table of well-formed sequences in the Unicode standard (section 3.9, table 3-7).
Scan scan(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, true, false};
  size_t more = 0;
  if (first >= 0xC2 && first <= 0xDF) more = 1;
  if (first >= 0xE0 && first <= 0xEF) more = 2;
  if (first >= 0xF0 && first <= 0xF4) more = 3;
  if (more == 0) return {1, false, false};
  for (size_t i = 1; i <= more; ++i) {
    if (i >= bytes.size()) return {i, false, true};
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      if (first == 0xE0) low = 0xA0;
      if (first == 0xED) high = 0x9F;
      if (first == 0xF0) low = 0x90;
      if (first == 0xF4) high = 0x8F;
    }
    if (byte(i) < low || byte(i) > high) return {i, false, false};
  }
  return {more + 1, true, false};
}

}  // namespace

size_t whole_characters(std::string_view bytes) {
  const size_t tail = bytes.size() < 3 ? bytes.size() : 3;  // an incomplete character has at most three bytes
  for (size_t back = tail; back >= 1; --back) {
    const size_t begin = bytes.size() - back;
    const Scan s = scan(bytes.substr(begin));
    if (s.incomplete && s.length == back) return begin;
  }
  return bytes.size();
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    uint64_t eight = 0;
    if (bytes.size() >= 8) std::memcpy(&eight, bytes.data(), 8);
    if (bytes.size() >= 8 && (eight & 0x8080808080808080) == 0) {
      bytes.remove_prefix(8);
      continue;
    }
    const Scan s = scan(bytes);
    if (!s.valid) return false;
    bytes.remove_prefix(s.length);
  }
  return true;
}

std::string as_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Scan s = scan(bytes);
    if (s.valid) {
      out += bytes.substr(0, s.length);
    } else {
      out += "\xEF\xBF\xBD";
    }
    bytes.remove_prefix(s.length);
  }
  return out;
}

}  // namespace cyfa
