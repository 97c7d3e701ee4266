// A new folder of files that appears when all of them are written. Used for checkpoints.
#pragma once

#include <filesystem>

namespace cyfa::io {

// A folder NAME that process N is still writing is NAME.part-N.
inline constexpr const char* kPartMark = ".part-";

// Writes a folder under a temporary name, and renames it when it is complete. Removes what killed processes left of the same folder. Every
// failure throws FileError, also that `folder` exists and is not empty.
class NewFolder {
 public:
  explicit NewFolder(const std::filesystem::path& folder);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();  // without commit(), removes what has been written

  const std::filesystem::path& path() const { return temporary_; }  // where to write
  void commit();
  void abandon() { temporary_.clear(); }  // leaves what has been written where it is

 private:
  std::filesystem::path folder_, temporary_;
};

}  // namespace cyfa::io
