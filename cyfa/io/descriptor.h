// A file descriptor of a regular file, open for reading. Used by the readers of this folder.
#pragma once

#include <cstddef>
#include <filesystem>

namespace cyfa::io {

// Opens a file and closes it on destruction. Throws FileError if the file is missing, unreadable or not a regular file.
class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path);
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int fd() const { return fd_; }
  size_t size() const { return size_; }  // bytes of the file when it was opened

 private:
  int fd_ = -1;
  size_t size_ = 0;
};

}  // namespace cyfa::io
