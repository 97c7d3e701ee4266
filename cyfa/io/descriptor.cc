// See descriptor.h.
#include "cyfa/io/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "cyfa/io/file_error.h"

namespace cyfa::io {

Descriptor::Descriptor(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe fails below instead of waiting for a writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw system_error(path, "open", errno);
  struct stat status = {};
  const int error = ::fstat(fd_, &status) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw error != 0 ? system_error(path, "fstat", error) : FileError(path, "is not a regular file; only those are read");
  }
  size_ = static_cast<size_t>(status.st_size);
}

Descriptor::~Descriptor() { ::close(fd_); }

}  // namespace cyfa::io
