// Mapped files, and the list by which a handler of SIGBUS finds the name of one.
#include "cyfa/io/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

namespace cyfa::io {
namespace {

class MappedFiles : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path file(const std::string& name, size_t bytes = 10000) const {
    std::ofstream(folder_ / name) << std::string(bytes, 'x');
    return folder_ / name;
  }
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / ("mapped_" + std::to_string(::getpid()));
};

TEST_F(MappedFiles, AreFoundByTheirAddresses) {
  const std::filesystem::path path = file("a");
  const std::byte* begin = nullptr;
  {
    MappedFile mapped(path);
    begin = mapped.bytes().data();
    EXPECT_EQ(mapped_file_at(begin), path.string());
    EXPECT_EQ(mapped_file_at(begin + 9999), path.string());
    EXPECT_EQ(mapped_file_at(begin + 10000), nullptr);
    EXPECT_EQ(mapped_file_at(begin - 1), nullptr);
    MappedFile moved(std::move(mapped));
    EXPECT_EQ(mapped_file_at(begin), path.string());
    moved = MappedFile(file("b"));
    EXPECT_EQ(mapped_file_at(moved.bytes().data()), (folder_ / "b").string());
  }
  EXPECT_EQ(mapped_file_at(begin), nullptr);
  EXPECT_EQ(mapped_file_at(nullptr), nullptr);
  EXPECT_EQ(mapped_file_at(&path), nullptr);
  EXPECT_TRUE(MappedFile(file("empty", 0)).bytes().empty());
}

TEST_F(MappedFiles, LongNamesKeepTheirEnd) {
  std::filesystem::path deep = folder_;
  for (int i = 0; i < 6; ++i) deep /= std::string(200, static_cast<char>('a' + i));
  std::filesystem::create_directories(deep);
  std::ofstream(deep / "last") << "x";
  const MappedFile mapped(deep / "last");
  const std::string name = mapped_file_at(mapped.bytes().data());
  EXPECT_TRUE(deep.string().size() > 1000 && name.size() < 500 && name.ends_with("f/last")) << name;
}

TEST_F(MappedFiles, ThreadsMapAndUnmap) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([path = file(std::to_string(i)).string()] {
      for (int round = 0; round < 300; ++round) {
        const MappedFile mapped(path);
        ASSERT_EQ(mapped_file_at(mapped.bytes().data() + round), path);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cyfa::io
