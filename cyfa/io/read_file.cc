// See read_file.h.
#include "cyfa/io/read_file.h"

#include <unistd.h>

#include <cerrno>

#include "cyfa/io/descriptor.h"
#include "cyfa/io/file_error.h"

namespace cyfa::io {

std::string read_file(const std::filesystem::path& path, size_t most, std::string_view what) {
  const Descriptor file(path);
  const auto refuse = [&](const std::string& bytes) {
    throw FileError(path, "has " + bytes + " bytes; " + std::string(what) + " has at most " + std::to_string(most));
  };
  if (file.size() > most) refuse(std::to_string(file.size()));
  std::string text(file.size() + 1, '\0');  // one byte more, to see whether the file grows
  size_t filled = 0;
  for (;;) {
    const ssize_t count = ::read(file.fd(), text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error(path, "read", errno);
    if (count == 0) break;
    filled += static_cast<size_t>(count);
    if (filled > most) refuse("more than " + std::to_string(most));
    if (filled == text.size()) text.resize(2 * filled);
  }
  text.resize(filled);
  return text;
}

}  // namespace cyfa::io
