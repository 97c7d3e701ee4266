// See python_text.h.
#include "cyfa/eval/python_text.h"

#include <algorithm>
#include <iterator>

#include "cyfa/data/utf8.h"
#include "cyfa/eval/unicode_tables.h"

namespace cyfa::eval {
namespace {

// Reads the character at `at` of valid UTF-8 and moves `at` behind it.
char32_t next_character(std::string_view text, size_t& at) {
  const auto first = static_cast<uint8_t>(text[at++]);
  if (first < 0x80) return first;
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  char32_t character = first & (0x3FU >> more);
  for (int i = 0; i < more; ++i) character = (character << 6) | (static_cast<uint8_t>(text[at++]) & 0x3FU);
  return character;
}

// The length of the white space that the text begins with, 0 if there is none. White space of Unicode has up to three bytes.
size_t space_bytes(std::string_view text) {
  const size_t whole = std::min<size_t>(text.size(), static_cast<uint8_t>(text[0]) < 0x80   ? 1
                                                     : static_cast<uint8_t>(text[0]) < 0xE0 ? 2
                                                                                            : 3);
  if (!is_utf8(text.substr(0, whole))) return 0;
  size_t at = 0;
  return is_space(next_character(text, at)) ? at : 0;
}

}  // namespace

std::u32string code_points(std::string_view text) {
  std::u32string all;
  all.reserve(text.size());
  std::string valid;
  if (!is_utf8(text)) text = valid = as_utf8(text);
  for (size_t at = 0; at < text.size();) all.push_back(next_character(text, at));
  return all;
}

void append_utf8(std::string& text, char32_t c) {
  const auto add = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return add(c);
  if (c < 0x800) {
    add(0xC0 | (c >> 6));
  } else if (c < 0x10000) {
    add(0xE0 | (c >> 12));
    add(0x80 | ((c >> 6) & 0x3F));
  } else {
    add(0xF0 | (c >> 18));
    add(0x80 | ((c >> 12) & 0x3F));
    add(0x80 | ((c >> 6) & 0x3F));
  }
  add(0x80 | (c & 0x3F));
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) { return (std::upper_bound(std::begin(kWordRuns), std::end(kWordRuns), c) - std::begin(kWordRuns)) % 2 == 1; }

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> pieces;
  size_t begin = 0;
  const auto end_piece = [&](size_t end) {
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t space = space_bytes(text.substr(at));
    if (space == 0) {
      ++at;
      continue;
    }
    end_piece(at);
    begin = at += space;
  }
  end_piece(text.size());
  return pieces;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    pieces.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return pieces;
    begin = end + 1;
  }
}

std::string collapse(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const std::string_view piece : split(text)) {
    if (!out.empty()) out += ' ';
    out += piece;
  }
  return out;
}

}  // namespace cyfa::eval
