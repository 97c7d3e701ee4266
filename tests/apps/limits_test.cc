// What a process may use (apps/limits.h) and the words for running out of memory (apps/memory.h).
#include "apps/limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "apps/memory.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;

// A folder in the place of /sys/fs/cgroup, and a file in the place of /proc/self/cgroup.
class Cgroup : public ::testing::Test {
 protected:
  Cgroup() {
    std::string name = (fs::temp_directory_path() / "cyfa-cgroup-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~Cgroup() override { fs::remove_all(root_); }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << '\n';
  }
  double cpus() const { return cgroup_cpus(root_ / "cgroup", root_ / "mount"); }
  int64_t memory() const { return cgroup_free_memory(root_ / "cgroup", root_ / "mount"); }

  fs::path root_;
};

TEST_F(Cgroup, VersionTwoTakesTheLeastOfTheGroupAndItsParents) {
  write("cgroup", "0::/a/b");
  write("mount/a/b/cpu.max", "max 100000");
  write("mount/a/cpu.max", "150000 100000");
  write("mount/a/b/memory.max", "4096");
  write("mount/a/b/memory.current", "1000");
  write("mount/a/memory.max", "max");
  write("mount/a/memory.current", "5000");
  EXPECT_EQ(cpus(), 1.5);
  EXPECT_EQ(memory(), 3096);
}

TEST_F(Cgroup, VersionOneHasAFolderPerController) {
  write("cgroup", "4:memory:/m\n1:cpu,cpuacct:/c\n0::/");
  write("mount/cpu/c/cpu.cfs_quota_us", "50000");
  write("mount/cpu/c/cpu.cfs_period_us", "100000");
  write("mount/cpu/cpu.cfs_quota_us", "-1");
  write("mount/cpu/cpu.cfs_period_us", "100000");
  write("mount/memory/m/memory.limit_in_bytes", "1000");
  write("mount/memory/m/memory.usage_in_bytes", "2000");
  write("mount/memory/memory.limit_in_bytes", "9223372036854771712");
  write("mount/memory/memory.usage_in_bytes", "2000");
  EXPECT_EQ(cpus(), 0.5);
  EXPECT_EQ(memory(), 0);
}

TEST_F(Cgroup, NoLimitIsMinusOne) {
  EXPECT_EQ(cpus(), -1);
  EXPECT_EQ(memory(), -1);
  write("cgroup", "0::/not/seen/from/here");
  EXPECT_EQ(cpus(), -1);
  EXPECT_EQ(memory(), -1);
}

TEST(Limits, OfThisProcess) {
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_GT(free_memory().bytes, 0);
  EXPECT_GE(machine_memory(), free_memory().bytes);
}

TEST(MemoryWords, SayHowMuchWasWantedAndWhatToDo) {
  const std::string cpu = memory_words(
      "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes. "
      "Error code 12 (Cannot allocate memory)");
  EXPECT_EQ(cpu.find("out of memory: 16.0 GiB more were wanted in one piece, "), 0u) << cpu;
  EXPECT_NE(cpu.find("smaller"), std::string::npos);
  const std::string gpu = memory_words(
      "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.20 GiB is free. Process 7 has "
      "138.60 GiB memory in use. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True");
  EXPECT_EQ(gpu.find("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.20 GiB is free. "
                     "Make the model"),
            0u)
      << gpu;
  EXPECT_EQ(memory_words("another error"), "another error");
  EXPECT_EQ(out_of_memory(OutOfMemory(3 << 20)).find("out of memory: 3.0 MiB more"), 0u);
  EXPECT_EQ(out_of_memory(std::bad_alloc()).find("out of memory: "), 0u);
}

}  // namespace
}  // namespace cyfa::app
