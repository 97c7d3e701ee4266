// The exception for files that cannot be read or written or have invalid contents, and helpers for its messages. Thrown by cyfa/io, data,
// model, decode and train.
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
  std::string message() const { return what() + path_.string().size() + 2; }

 private:
  std::filesystem::path path_;
};

// A FileError with the message "<action> failed: <description of error>". `error` is the errno of the failed call.
FileError system_error(const std::filesystem::path& path, std::string_view action, int error);

// Text from a file in a form that is safe for error messages: quoted, at most 80 bytes, everything but printable ASCII as \xNN. A crafted
// name can thus neither flood a log nor send escape sequences to a terminal.
std::string printable(std::string_view text);

}  // namespace cyfa::io
