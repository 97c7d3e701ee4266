// See text.h.
#include "cyfa/eval/text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "cyfa/data/utf8.h"

namespace cyfa::eval {
namespace {

// A character and its bytes; a byte that belongs to none stands for itself, beyond all code points.
struct Character {
  uint32_t code = 0;
  size_t bytes = 0;
};

constexpr uint32_t kNone = 0x110000;

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (at + bytes > text.size() || !is_utf8(text.substr(at, bytes))) return {kNone + first, 1};
  uint32_t code = first & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (byte(i) & 0x3Fu);
  return {code, bytes};
}

// The start of the last character.
size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && text.size() - at < 4 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return character_at(text, at).bytes == text.size() - at ? at : text.size() - 1;
}

void append(std::string& text, uint32_t code) {
  if (code >= kNone) {
    text += static_cast<char>(code - kNone);
  } else if (code < 0x80) {
    text += static_cast<char>(code);
  } else {
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    text += static_cast<char>((0xF00u >> (more + 1) & 0xFFu) | code >> (6 * more));
    for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80u | (code >> (6 * i) & 0x3Fu));
  }
}

// str.isspace()
bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Capital letters first, first + step, ..., last, and how far their small letters are: Latin, Greek, Cyrillic, Armenian, full width.
struct Capitals {
  uint32_t first, last, step, to_small;
};
constexpr Capitals kCapitals[] = {
    {'A', 'Z', 1, 32},      {0xC0, 0xD6, 1, 32},     {0xD8, 0xDE, 1, 32},   {0x100, 0x12E, 2, 1},  {0x132, 0x136, 2, 1},
    {0x139, 0x147, 2, 1},   {0x14A, 0x176, 2, 1},    {0x179, 0x17D, 2, 1},  {0x1CD, 0x1DB, 2, 1},  {0x1DE, 0x1EE, 2, 1},
    {0x1F8, 0x21E, 2, 1},   {0x386, 0x386, 1, 38},   {0x388, 0x38A, 1, 37}, {0x38C, 0x38C, 1, 64}, {0x38E, 0x38F, 1, 63},
    {0x391, 0x3A1, 1, 32},  {0x3A3, 0x3AB, 1, 32},   {0x400, 0x40F, 1, 80}, {0x410, 0x42F, 1, 32}, {0x460, 0x480, 2, 1},
    {0x48A, 0x4BE, 2, 1},   {0x4C1, 0x4CD, 2, 1},    {0x4D0, 0x52E, 2, 1},  {0x531, 0x556, 1, 48}, {0x1E00, 0x1E94, 2, 1},
    {0x1EA0, 0x1EFE, 2, 1}, {0xFF21, 0xFF3A, 1, 32},
};

uint32_t small(uint32_t code) {
  for (const Capitals& c : kCapitals) {
    if (code >= c.first && code <= c.last && (code - c.first) % c.step == 0) return code + c.to_small;
  }
  return code == 0x178 ? 0xFF : code;
}

uint32_t capital(uint32_t code) {
  for (const Capitals& c : kCapitals) {
    const uint32_t from = code - c.to_small;
    if (code >= c.first + c.to_small && from <= c.last && (from - c.first) % c.step == 0) return from;
  }
  return code == 0xFF ? 0x178 : code;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace

std::string_view right_strip(std::string_view text) {
  while (!text.empty()) {
    const size_t last = last_character(text);
    if (!is_space(character_at(text, last).code)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string_view strip(std::string_view text) {
  text = right_strip(text);
  while (!text.empty()) {
    const Character c = character_at(text, 0);
    if (!is_space(c.code)) break;
    text.remove_prefix(c.bytes);
  }
  return text;
}

std::string_view strip(std::string_view text, std::string_view these) {
  const size_t first = std::min(text.find_first_not_of(these), text.size());
  text.remove_prefix(first);
  return text.substr(0, text.find_last_not_of(these) + 1);
}

size_t characters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes) ++count;
  return count;
}

std::string lower(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    append(result, small(c.code));
    at += c.bytes;
  }
  return result;
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  const Character first = character_at(text, 0);
  std::string result;
  append(result, capital(first.code));
  return result + lower(text.substr(first.bytes));
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (;;) {
    const size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    result.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return result.append(text);
}

size_t pieces_at_white_space(std::string_view text) {
  size_t pieces = 1;
  bool inside = false;  // a run of white space
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    const bool space = is_space(c.code);
    if (space && !inside) ++pieces;
    inside = space;
    at += c.bytes;
  }
  return pieces;
}

size_t find_ignoring_case(std::string_view text, std::string_view wanted) {
  const std::string small_wanted = lower(wanted);
  if (is_ascii(text)) return lower(text).find(small_wanted);
  // The small form of a letter may have another number of bytes, so places are those of the text itself.
  for (size_t at = 0; at <= text.size();) {
    size_t here = at, matched = 0;
    while (matched < small_wanted.size() && here < text.size()) {
      const Character c = character_at(text, here);
      std::string one;
      append(one, small(c.code));
      if (small_wanted.compare(matched, one.size(), one) != 0) break;
      matched += one.size();
      here += c.bytes;
    }
    if (matched == small_wanted.size()) return at;
    if (at == text.size()) break;
    at += character_at(text, at).bytes;
  }
  return std::string_view::npos;
}

bool ends_ignoring_case(std::string_view text, std::string_view ending) { return lower(text).ends_with(lower(ending)); }

bool contains_any(std::string_view text, const std::vector<std::string>& wanted) {
  const std::string small_text = lower(text);
  return std::any_of(wanted.begin(), wanted.end(), [&](const std::string& w) { return small_text.find(lower(w)) != std::string::npos; });
}

}  // namespace cyfa::eval
