// See atomic_file.h.
#include "cyfa/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "cyfa/io/file_error.h"

namespace cyfa::io {
namespace {

constexpr int kNameAttempts = 100;
constexpr const char* kBegin = ".cyfa-";
constexpr const char* kEnd = ".tmp";
// Linux writes at most 2^31 - 4096 bytes per call.
constexpr size_t kWriteStep = size_t{1} << 30;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

// Makes the rename durable. Some file systems cannot sync a folder and return EINVAL or ENOTSUP; the file is in place anyway.
void sync_folder(const std::filesystem::path& path) {
  const int fd = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return;
  }
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0 && error != EINVAL && error != ENOTSUP) {
    throw system_error(path, "the file was written, but fsync of its folder", error);
  }
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  if (!path.has_filename()) {
    throw FileError(path, "names a folder; wanted the name of a file to write");
  }
  // Not mkstemp: it creates files with mode 0600 regardless of the umask, and the final file would keep that mode.
  std::random_device entropy;
  int error = EEXIST;
  for (int attempt = 0; attempt < kNameAttempts && error == EEXIST; ++attempt) {
    const uint64_t tag = (uint64_t{entropy()} << 32) | entropy();
    temporary_ = folder_of(path) / (kBegin + std::to_string(tag) + kEnd);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) {
      return;
    }
    error = errno;
  }
  throw system_error(path, "creating a temporary file in " + folder_of(path).string(), error);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), std::min(bytes.size(), kWriteStep));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw system_error(path_, "write with " + std::to_string(bytes.size()) + " bytes to go", count < 0 ? errno : ENOSPC);
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) {
    throw system_error(path_, "fsync", errno);
  }
  if (::close(std::exchange(fd_, -1)) != 0) {
    throw system_error(path_, "close", errno);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw system_error(path_, "rename over the old file", errno);
  }
  temporary_.clear();
  sync_folder(path_);
}

void remove_temporaries(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kBegin) && name.ends_with(kEnd)) std::filesystem::remove(entry.path(), error);
  }
}

}  // namespace cyfa::io
