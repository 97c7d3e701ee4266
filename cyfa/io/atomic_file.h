// Atomic replacement of a file: readers see the old contents or the complete new ones. Used for tensors,
// pictures, token folders, checkpoints.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace cyfa::io {

// Writes to a temporary file in the folder of `path`. commit() flushes it to disk and renames it to `path`. Until then, and after any
// failure, an existing file at `path` is unchanged. Without commit() the destructor removes the temporary file. Every failure, including a
// full disk, throws FileError.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Appends bytes.
  void write(std::span<const std::byte> bytes);
  // Replaces `path`. Call once; write() must not follow.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty after the rename
  int fd_ = -1;
};

// Removes what AtomicFiles of killed processes left in a folder. Call it only while no other process writes there (folder_lock.h).
void remove_temporaries(const std::filesystem::path& folder);

}  // namespace cyfa::io
