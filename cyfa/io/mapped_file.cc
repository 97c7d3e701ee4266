// See mapped_file.h.
#include "cyfa/io/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "cyfa/io/descriptor.h"
#include "cyfa/io/file_error.h"

namespace cyfa::io {

// A mapping in the list that mapped_file_at() searches. Entries are reused and never freed, so that a reader without a lock finds valid
// memory; if a mapping ends while it reads, the worst result is the name of the file that has taken the entry.
struct MappedFile::Entry {
  std::atomic<uintptr_t> begin = 0, end = 0;  // both 0: unused
  char name[496] = {};                        // always ends with a zero
  Entry* next = nullptr;                      // in the list of all entries
  Entry* next_unused = nullptr;

  static std::atomic<Entry*> all;  // a list that only grows
  static Entry* unused;            // guarded by `mutex`
  static std::mutex mutex;

  static Entry* take() {
    const std::lock_guard lock(mutex);
    if (unused != nullptr) return std::exchange(unused, unused->next_unused);
    auto* entry = new Entry;
    entry->next = all;
    all = entry;
    return entry;
  }
  void set(const std::string& path, const void* data, size_t size) {
    const size_t cut = path.size() < sizeof(name) ? 0 : path.size() - sizeof(name) + 1;
    name[path.copy(name, sizeof(name) - 1, cut)] = '\0';
    begin = reinterpret_cast<uintptr_t>(data);
    end = reinterpret_cast<uintptr_t>(data) + size;
  }
  void give() noexcept {
    begin = end = 0;
    const std::lock_guard lock(mutex);
    next_unused = std::exchange(unused, this);
  }
};

std::atomic<MappedFile::Entry*> MappedFile::Entry::all = nullptr;
MappedFile::Entry* MappedFile::Entry::unused = nullptr;
std::mutex MappedFile::Entry::mutex;

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(path);
  const size_t size = file.size();
  if (size == 0) {
    return;
  }
  Entry* entry = Entry::take();
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    entry->give();
    throw system_error(path, "mmap of " + std::to_string(size) + " bytes", error);
  }
  entry->set(path.string(), data, size);
  data_ = data;
  size_ = size;
  entry_ = entry;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), entry_(std::exchange(other.entry_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  MappedFile taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  std::swap(entry_, taken.entry_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    entry_->give();
    ::munmap(data_, size_);
  }
}

const char* mapped_file_at(const void* address) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const MappedFile::Entry* entry = MappedFile::Entry::all; entry != nullptr; entry = entry->next) {
    if (at >= entry->begin && at < entry->end) return entry->name;
  }
  return nullptr;
}

void MappedFile::read_all() const {
  if (data_ == nullptr) return;
#ifdef MADV_POPULATE_READ
  if (::madvise(data_, size_, MADV_POPULATE_READ) == 0) return;
#endif
  ::madvise(data_, size_, MADV_WILLNEED);
}

void MappedFile::forget(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace cyfa::io
