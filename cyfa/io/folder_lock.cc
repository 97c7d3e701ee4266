// See folder_lock.h.
#include "cyfa/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "cyfa/io/file_error.h"

namespace cyfa::io {

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& holder)
    : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) throw system_error(folder, "open", errno);
  int error = 0;
  do {
    error = ::flock(fd_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) return;
  ::close(fd_);
  if (error == EWOULDBLOCK) throw FileError(folder, holder + " is writing here; wait for it to end, or take another folder");
  throw system_error(folder, "locking the folder against other processes (flock; take a folder on a file system that has locks)", error);
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace cyfa::io
