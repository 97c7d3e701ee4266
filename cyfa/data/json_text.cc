// See json_text.h: a recursive parser that only validates everything but the wanted string.
#include "cyfa/data/json_text.h"

#include <array>
#include <cstdint>
#include <optional>

#include "cyfa/io/file_error.h"

namespace cyfa {
namespace {

constexpr int kMostDepth = 200;
constexpr std::string_view kByteOrder = "\xEF\xBB\xBF";

// Thrown inside the parser.
struct Problem {
  std::string text;
};

// Bytes that need attention inside a string: quotes, backslashes and control characters.
constexpr std::array<bool, 256> kSpecial = [] {
  std::array<bool, 256> special = {};
  for (size_t c = 0; c < 32; ++c) special[c] = true;
  special['"'] = special['\\'] = true;
  return special;
}();

void append_utf8(uint32_t c, std::string& to) {
  const auto add = [&](uint32_t byte) { to += static_cast<char>(byte); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | c >> 6), add(0x80 | (c & 63));
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
  } else {
    add(0xF0 | c >> 18), add(0x80 | (c >> 12 & 63)), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
  }
}

class Parser {
 public:
  Parser(std::string_view line, std::string_view field, std::string& buffer) : line_(line), field_(field), buffer_(buffer) {
    if (line.starts_with(kByteOrder)) at_ = kByteOrder.size();
  }

  JsonText run() {
    space();
    if (peek() != '{') return {"is not a JSON object", {}, false};
    JsonText found;
    bool present = false;
    const auto member = [&](std::string_view key) {
      if (key != field_) return value(1);
      present = true;
      if (peek() != '"') {
        found = {"has no string at the key " + io::printable(field_), {}, false};
        return value(1);
      }
      found.problem.clear();
      const String raw = string();
      found.replaced = false;
      found.text = plain(raw, buffer_, found.replaced);
    };
    members(member);
    space();
    if (at_ != line_.size()) fail("has more after the JSON object");
    if (!present) return {"has no key " + io::printable(field_), {}, false};
    return found;
  }

 private:
  struct String {
    std::string_view raw;  // the bytes between the quotes
    bool escaped;
  };

  [[noreturn]] void fail(const std::string& what) const { throw Problem{what + " (byte " + std::to_string(at_) + " of the line)"}; }
  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  void space() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r' || line_[at_] == '\n')) ++at_;
  }
  void take(char c) {
    if (at_ >= line_.size()) fail("ends inside the JSON");
    if (line_[at_] != c) fail("is not JSON");
    ++at_;
  }

  template <class Member>
  void members(const Member& member) {
    take('{');
    space();
    if (peek() == '}') return take('}');
    for (;;) {
      space();
      const String raw = string();
      bool replaced = false;
      const std::string_view key = plain(raw, key_, replaced);
      space();
      take(':');
      space();
      member(key);
      space();
      if (peek() == '}') return take('}');
      take(',');
    }
  }

  void value(int depth) {
    if (depth > kMostDepth) fail("is nested too deeply");
    switch (peek()) {
      case '"': string(); return;
      case '{': members([&](std::string_view) { value(depth + 1); }); return;
      case '[':
        take('[');
        space();
        if (peek() == ']') return take(']');
        for (;;) {
          space();
          value(depth + 1);
          space();
          if (peek() == ']') return take(']');
          take(',');
        }
      case 't': return word("true");
      case 'f': return word("false");
      case 'n': return word("null");
      default: number();
    }
  }

  void word(std::string_view wanted) {
    for (const char c : wanted) take(c);
  }

  void digits() {
    if (peek() < '0' || peek() > '9') take('0');  // throws
    while (peek() >= '0' && peek() <= '9') ++at_;
  }

  void number() {
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (peek() == '.') {
      ++at_;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
  }

  String string() {
    take('"');
    const size_t begin = at_;
    bool escaped = false;
    for (;;) {
      while (at_ < line_.size() && !kSpecial[static_cast<uint8_t>(line_[at_])]) ++at_;
      if (at_ >= line_.size()) fail("ends inside a string");
      if (line_[at_] == '"') break;
      if (line_[at_] != '\\') fail("has a control character inside a string");
      escaped = true;
      ++at_;
      const char c = peek();
      if (c == 'u') {
        for (int i = 0; i < 4; ++i) {
          ++at_;
          if (!digit(peek())) fail("has a bad escape inside a string");
        }
      } else if (c == '\0' || std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) {
        fail(at_ < line_.size() ? "has a bad escape inside a string" : "ends inside a string");
      }
      ++at_;
    }
    const String result = {line_.substr(begin, at_ - begin), escaped};
    ++at_;
    return result;
  }

  static std::optional<uint32_t> digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return std::nullopt;
  }

  // The value of the four hexadecimal digits at `from`, which string() has validated.
  static uint32_t code(std::string_view raw, size_t from) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value * 16 + *digit(raw[from + i]);
    return value;
  }

  // The text of a string: its raw bytes, or the unescaped text in `buffer`.
  static std::string_view plain(const String& string, std::string& buffer, bool& replaced) {
    if (!string.escaped) return string.raw;
    const std::string_view raw = string.raw;
    buffer.clear();
    for (size_t at = 0; at < raw.size();) {
      const size_t slash = std::min(raw.find('\\', at), raw.size());
      buffer.append(raw, at, slash - at);
      if (slash == raw.size()) break;
      const char c = raw[slash + 1];
      at = slash + 2;
      switch (c) {
        case 'b': buffer += '\b'; break;
        case 'f': buffer += '\f'; break;
        case 'n': buffer += '\n'; break;
        case 'r': buffer += '\r'; break;
        case 't': buffer += '\t'; break;
        case 'u': {
          uint32_t one = code(raw, at);
          at += 4;
          if (one >= 0xD800 && one < 0xDC00 && raw.substr(at, 2) == "\\u") {
            const uint32_t two = code(raw, at + 2);
            if (two >= 0xDC00 && two < 0xE000) {
              one = 0x10000 + ((one - 0xD800) << 10) + (two - 0xDC00);
              at += 6;
            }
          }
          if (one >= 0xD800 && one < 0xE000) {
            one = 0xFFFD;
            replaced = true;
          }
          append_utf8(one, buffer);
          break;
        }
        default: buffer += c;  // a quote, slash or backslash
      }
    }
    return buffer;
  }

  std::string_view line_, field_;
  std::string& buffer_;
  std::string key_;
  size_t at_ = 0;
};

}  // namespace

JsonText json_text(std::string_view line, std::string_view field, std::string& buffer) {
  try {
    return Parser(line, field, buffer).run();
  } catch (const Problem& problem) {
    return {problem.text, {}, false};
  }
}

}  // namespace cyfa
