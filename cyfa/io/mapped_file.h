// A regular file mapped read-only. Used for safetensors and token shards.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace cyfa::io {

// Owns the mapping. Spans of bytes() stay valid when the object is moved, and end with the final owner. The file must not shrink in the
// meantime: reading past its new end raises SIGBUS. A program can turn that signal into an error with mapped_file_at().
class MappedFile {
 public:
  MappedFile() = default;
  // Throws FileError if the file is missing, unreadable or not a regular file. An empty file gives an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

  // Hints to the operating system; bytes() stays valid. read_all: load the whole file into memory now. forget: `part` of bytes() will not
  // be read again soon and its pages may be dropped.
  void read_all() const;
  void forget(std::span<const std::byte> part) const;

 private:
  struct Entry;

  void* data_ = nullptr;
  size_t size_ = 0;
  Entry* entry_ = nullptr;  // in the list that mapped_file_at() searches

  friend const char* mapped_file_at(const void* address) noexcept;
};

// The path of the mapped file that `address` lies in; its end, if it is long; null if there is none. Takes no lock and allocates nothing,
// so that a handler of SIGBUS may call it.
const char* mapped_file_at(const void* address) noexcept;

}  // namespace cyfa::io
