// Tests the lock on a folder and the removal of what killed writers leave.
#include "cyfa/io/folder_lock.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"

namespace cyfa::io {
namespace {

namespace fs = std::filesystem;

class FolderLockTest : public testing::Test {
 protected:
  FolderLockTest() {
    std::string name = (fs::temp_directory_path() / "cyfa-lock-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~FolderLockTest() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(FolderLockTest, IsHeldByOneAtATime) {
  std::optional<FolderLock> first(std::in_place, folder_, "another test");
  try {
    const FolderLock second(folder_, "another test");
    FAIL();
  } catch (const FileError& e) {
    EXPECT_NE(std::string(e.what()).find("another test is writing here"), std::string::npos) << e.what();
  }
  first.reset();
  EXPECT_NO_THROW(FolderLock(folder_, "another test"));
}

// What cannot be locked is an error, never a lock that is not held.
TEST_F(FolderLockTest, AnythingElseIsAnError) {
  EXPECT_THROW(FolderLock(folder_ / "absent", "x"), FileError);
  EXPECT_THROW(FolderLock("/proc/self/fd/absent", "x"), FileError);
}

TEST_F(FolderLockTest, OnlyTemporaryFilesAreRemoved) {
  for (const char* name : {".cyfa-123.tmp", ".cyfa-kept", "file.tmp"}) std::ofstream(folder_ / name) << "x";
  remove_temporaries(folder_);
  EXPECT_FALSE(fs::exists(folder_ / ".cyfa-123.tmp"));
  EXPECT_TRUE(fs::exists(folder_ / ".cyfa-kept"));
  EXPECT_TRUE(fs::exists(folder_ / "file.tmp"));
  EXPECT_NO_THROW(remove_temporaries(folder_ / "absent"));
}

}  // namespace
}  // namespace cyfa::io
