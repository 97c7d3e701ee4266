// See file_error.h.
#include "cyfa/io/file_error.h"

#include <cstddef>
#include <system_error>

namespace cyfa::io {

FileError::FileError(const std::filesystem::path& path, const std::string& message)
    : std::runtime_error(path.string() + ": " + message), path_(path) {}

FileError system_error(const std::filesystem::path& path, std::string_view action, int error) {
  return FileError(path, std::string(action) + " failed: " + std::generic_category().message(error));
}

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 80;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '"' || byte == '\\') {
      result += '\\';
      result += c;
    } else if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += "\\x";
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    }
  }
  if (text.size() > kLongest) {
    result += "...";
  }
  return result + '"';
}

}  // namespace cyfa::io
