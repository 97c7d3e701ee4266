// A whole regular file, mapped read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace cyfa::io {

// Owns the mapping. Spans of bytes() stay valid when the object is moved, and end with the object that owns it last. The
// file must not shrink meanwhile: reading past its new end is a bus error.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws FileError when the file is missing, unreadable or not a regular file. An empty file gives no bytes.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

  // Hints to the system; the bytes stay valid. read_all: bring the whole file into memory now. forget: `part` of bytes() will not be read
  // again soon, and its memory may go.
  void read_all() const;
  void forget(std::span<const std::byte> part) const;

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cyfa::io
