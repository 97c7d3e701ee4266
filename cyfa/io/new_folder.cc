// See new_folder.h.
#include "cyfa/io/new_folder.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <string>

#include "cyfa/io/file_error.h"

namespace cyfa::io {
namespace {

namespace fs = std::filesystem;

// Removes what killed processes left of a folder they were writing: NAME.part-N, if there is no process N.
void remove_dead_parts(const fs::path& folder) {
  const std::string begin = folder.filename().string() + kPartMark;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.has_parent_path() ? folder.parent_path() : fs::path("."), error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin)) continue;
    pid_t process = 0;
    const auto [end, wrong] = std::from_chars(name.data() + begin.size(), name.data() + name.size(), process);
    if (wrong != std::errc() || end != name.data() + name.size() || process <= 0) continue;
    if (::kill(process, 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), error);
  }
}

}  // namespace

NewFolder::NewFolder(const fs::path& folder) : folder_(folder), temporary_(folder.string() + kPartMark + std::to_string(::getpid())) {
  std::error_code error;
  if (fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder, error))) {
    throw FileError(folder, "exists and is not an empty folder; a checkpoint is not written over another");
  }
  remove_dead_parts(folder);
  fs::remove_all(temporary_, error);
  if (!fs::create_directories(temporary_, error) && error) throw FileError(temporary_, "cannot be created: " + error.message());
}

NewFolder::~NewFolder() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove_all(temporary_, error);
}

void NewFolder::commit() {
  std::error_code error;
  fs::remove(folder_, error);  // removes an existing empty folder
  fs::rename(temporary_, folder_, error);
  if (error) throw FileError(folder_, "cannot be put in place: " + error.message());
  temporary_.clear();
}

}  // namespace cyfa::io
