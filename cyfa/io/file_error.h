// The one exception of cyfa/io: a file that cannot be read or written, or whose contents are wrong.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace cyfa::io {

class FileError : public std::runtime_error {
 public:
  // what() is "<path>: <message>".
  FileError(const std::filesystem::path& path, const std::string& message);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// "<action> failed: <text of errno>"; `error` is errno as the failed call left it.
FileError system_error(const std::filesystem::path& path, std::string_view action, int error);

// Text from a file, fit for an error message: in quotes, at most 80 bytes, with everything but printable ASCII as \xNN, so
// that a crafted name can neither flood a log nor steer a terminal.
std::string printable(std::string_view text);

}  // namespace cyfa::io
