#include "apps/error_text.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <regex>
#include <stdexcept>

#include "apps/memory.h"

namespace cyfa::app {
namespace {

std::string torch_text(const std::string& message) {
  const std::string memory = memory_words(message);
  if (memory != message) return memory;
  if (message.find("Storage size calculation overflowed") != std::string::npos)
    return "out of memory: the sizes are too large for any machine";
  // Where torch found it: a bracket before the message, or the words `INTERNAL ASSERT FAILED at "file":line` in it.
  static const std::regex bracket("^\\[[^\\]]*\\] ");
  static const std::regex place(" at \"[^\"]*\":\\d+");
  std::string plain = std::regex_replace(std::regex_replace(message, bracket, ""), place, "");
  return plain.substr(0, plain.find('\n'));
}

// Without the marks that libraries put before their words: "[json.exception.type_error.302] ", "./src/processor.cc(232) [condition] ".
std::string without_marks(const std::string& message) {
  static const std::regex marks("\\[json\\.exception[^\\]]*\\] |[^ ]*\\.cc\\(\\d+\\) \\[[^\\]]*\\] ?");
  return std::regex_replace(message, marks, "");
}

}  // namespace

std::string error_text(const std::exception& error) {
  if (const auto* e = dynamic_cast<const c10::Error*>(&error)) return torch_text(e->what_without_backtrace());
  if (const auto* e = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return (e->path1().empty() ? "" : e->path1().string() + ": ") + e->code().message();
  }
  if (const auto* e = dynamic_cast<const std::ios_base::failure*>(&error))
    return "reading or writing a file failed: " + e->code().message();
  if (const auto* e = dynamic_cast<const std::bad_alloc*>(&error)) return out_of_memory(*e);
  if (dynamic_cast<const std::length_error*>(&error) != nullptr) return "out of memory: a size is too large";
  return without_marks(error.what());
}

}  // namespace cyfa::app
