// A file that appears whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace cyfa::io {

// Writes to a temporary file in the folder of `path`; commit() flushes it to the disk and renames it over `path`. Until then,
// and after any failure, what stood at `path` is untouched. Without a commit() the destructor removes the temporary file.
// Every failure, a full disk included, throws FileError.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty once renamed
  int fd_ = -1;
};

}  // namespace cyfa::io
