#include "apps/output.h"

#include <cstdarg>
#include <cstdio>
#include <iostream>
#include <span>

#include "apps/interrupt.h"
#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"

namespace cyfa::app {

std::string text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string result(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  std::vsnprintf(result.data(), result.size() + 1, format, again);
  va_end(again);
  return result;
}

// File names may hold bytes that are not UTF-8.
std::string dump(const Json& value, int indent) { return value.dump(indent, ' ', false, Json::error_handler_t::replace); }

void check_writable(const std::string& path) {
  if (std::filesystem::is_directory(path)) throw io::FileError(path, "is a folder; wanted the name of a file to write");
  const WriteGuard guard;
  const io::AtomicFile trial(path);  // a temporary file beside it, removed at once
}

void write_rows(const std::string& target, const Json& rows) {
  std::string out = "[";
  for (const Json& row : rows) out += (out.size() == 1 ? "\n" : ",\n") + dump(row);
  out += rows.empty() ? "]\n" : "\n]\n";
  if (target.empty()) return;
  if (target == "-") {
    std::cout << out << std::flush;
    return;
  }
  const WriteGuard guard;
  io::AtomicFile file(target);
  file.write(std::as_bytes(std::span(out)));
  file.commit();
}

}  // namespace cyfa::app
