// A lock on a folder, so that two processes do not write the files of one run or one data set. Used by `cyfa prepare` and `cyfa train`.
#pragma once

#include <filesystem>
#include <string>

namespace cyfa::io {

// Holds the lock while it exists. The system releases it when the process ends, however it ends.
class FolderLock {
 public:
  // The folder must exist. Throws FileError if another process (`holder`, such as "another `cyfa train`") holds the lock, and if the file
  // system has no locks.
  FolderLock(const std::filesystem::path& folder, const std::string& holder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int fd_;
};

}  // namespace cyfa::io
