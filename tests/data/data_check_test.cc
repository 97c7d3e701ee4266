// Comparing a data folder with its checksums, whole and in samples, and what a continuation leaves out of the data.
#include <gtest/gtest.h>

#include <set>

#include "cyfa/data/batches.h"
#include "cyfa/io/file_error.h"
#include "tests/data/data_folder.h"

namespace cyfa::test {
namespace {

namespace fs = std::filesystem;
using Extent = DataChecked::Extent;

constexpr DataCheck kSample{.whole_bytes = 0, .sample_bytes = int64_t{3} << 20};

// About 12 MiB of tokens in three shards.
class DataCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; text.size() < 6 << 20; ++i) text += std::to_string(i) + (i % 5000 == 0 ? "\"}\n{\"text\": \"" : " ");
    write_file(folder_ / "in.jsonl", "{\"text\": \"" + text + "\"}\n");
    prepare(folder_ / "data", folder_ / "in.jsonl", [](PrepareOptions& o) { o.shard_tokens = 2 << 20; });
  }
  // Overwrites `count` bytes with zeros.
  void spoil(const std::string& name, int64_t offset, int64_t count) const {
    std::fstream file(folder_ / "data" / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file << std::string(static_cast<size_t>(count), '\0');
    ASSERT_TRUE(file.good());
  }
  TokenData data() const { return TokenData::open(folder_ / "data"); }

  Folder folder_;
};

TEST_F(DataCheckTest, SaysHowMuchWasRead) {
  const TokenData all = data();
  ASSERT_GE(all.manifest().shards.size(), 3U);
  all.verify();
  const DataChecked whole = all.check(), sampled = all.check(kSample);
  EXPECT_EQ(whole.extent, Extent::kWhole);
  EXPECT_EQ(whole.bytes, all.tokens() * 2);
  EXPECT_EQ(sampled.extent, Extent::kSampled);
  EXPECT_EQ(sampled.all, whole.bytes);
  EXPECT_GT(sampled.bytes, 0);
  EXPECT_LT(sampled.bytes, sampled.all);
  EXPECT_EQ(all.check({.whole_bytes = 0, .sample_bytes = int64_t{1} << 40}).bytes, whole.bytes);
}

TEST_F(DataCheckTest, AShardOfOneTokenIsFound) {
  const auto size = static_cast<int64_t>(fs::file_size(folder_ / "data" / tokens_file(1)));
  spoil(tokens_file(1), 0, size);
  EXPECT_THROW(data().check(), io::FileError);
  EXPECT_THROW(data().check(kSample), io::FileError);
}

TEST_F(DataCheckTest, AnyBlockAndTheRestAreCompared) {
  const DataCheck every{.whole_bytes = 0, .sample_bytes = int64_t{1} << 40};
  const auto size = static_cast<int64_t>(fs::file_size(folder_ / "data" / tokens_file(0)));
  for (const int64_t offset : {int64_t{0}, int64_t{1} << 20, (int64_t{3} << 20) - 4, size - 4}) {
    const fs::path path = folder_ / "data" / tokens_file(0), kept = folder_ / "kept";
    fs::copy_file(path, kept, fs::copy_options::overwrite_existing);
    spoil(tokens_file(0), offset, 4);
    EXPECT_THROW(data().check(every), io::FileError) << offset;
    EXPECT_THROW(data().check(), io::FileError) << offset;
    fs::copy_file(kept, path, fs::copy_options::overwrite_existing);
  }
  EXPECT_NO_THROW(data().check(every));
  spoil(blocks_file(0), 8, 8);
  EXPECT_THROW(data().check(kSample), io::FileError);
}

// A folder of an earlier version has no hashes of blocks.
TEST_F(DataCheckTest, FoldersWithoutBlockHashesOpen) {
  TokenManifest manifest = data().manifest();
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    manifest.shards[i].blocks_checksum.reset();
    fs::remove(folder_ / "data" / blocks_file(i));
  }
  write_file(folder_ / "data/manifest.json", manifest.text());
  EXPECT_NO_THROW(data().verify());
  EXPECT_EQ(data().check().extent, Extent::kWhole);
  EXPECT_EQ(data().check(kSample).extent, Extent::kNothing);
}

TEST(Permutation, HasAnInverse) {
  for (const int64_t size : {1, 2, 5, 64, 1000, 4097}) {
    const Permutation permutation(size, 7);
    for (int64_t i = 0; i < size; ++i) ASSERT_EQ(permutation.inverse(permutation(i)), i) << size;
  }
}

class ContinuationTest : public DataCheckTest {
 protected:
  // Tokens of the windows of batches [begin, end).
  static std::set<int64_t> tokens(const Batches& batches, int64_t begin, int64_t end) {
    std::set<int64_t> all;
    for (int64_t step = begin; step < end; ++step) {
      for (const int64_t window : batches.rows(step)) {
        for (int64_t t = 0; t < batches.options().T; ++t) {
          EXPECT_TRUE(all.insert(window * batches.options().T + t).second);
        }
      }
    }
    return all;
  }
  static bool disjoint(const std::set<int64_t>& a, const std::set<int64_t>& b) {
    for (const int64_t one : a) {
      if (b.contains(one)) return false;
    }
    return true;
  }
};

// 2K pretraining, 8K continuation, 4K continuation of that: no token is read twice until all have been read.
TEST_F(ContinuationTest, ReadsOnlyWhatHasNotBeenRead) {
  const TokenData all = data();
  const Batches first(all, {.T = 2048, .B = 4, .seed = 1});
  const auto a = tokens(first, 0, 50);
  const std::vector<ReadText> read = first.read_after(50);
  ASSERT_EQ(read, (std::vector<ReadText>{{all.hash(), 1, 2048, 0, 200}}));

  const Batches second(all, {.T = 8192, .B = 2, .seed = 9, .before = read});
  const auto b = tokens(second, 0, 20);
  EXPECT_TRUE(disjoint(a, b));
  EXPECT_FALSE(disjoint(a, tokens(Batches(all, {.T = 8192, .B = 2, .seed = 9}), 0, 20)));
  EXPECT_EQ(Batches(all, {.T = 8192, .B = 2, .seed = 9, .before = read}).rows(13), second.rows(13));  // random access

  const Batches third(all, {.T = 4096, .B = 2, .seed = 9, .before = second.read_after(20)});
  const auto c = tokens(third, 0, 20);
  EXPECT_TRUE(disjoint(a, c));
  EXPECT_TRUE(disjoint(b, c));

  // The same order goes on where it stopped.
  const Batches same(all, {.T = 2048, .B = 4, .seed = 1, .before = read});
  for (int64_t step = 0; step < 5; ++step) EXPECT_EQ(same.rows(step), first.rows(50 + step));
}

TEST_F(ContinuationTest, BeginsASecondPassWhenEverythingHasBeenRead) {
  const TokenData all = data();
  const Batches first(all, {.T = 65536, .B = 4, .seed = 1});
  const int64_t per_epoch = first.per_epoch();
  EXPECT_EQ(first.read_after(per_epoch), (std::vector<ReadText>{{all.hash(), 1, 65536, 1, 0}}));
  const Batches second(all, {.T = 65536, .B = 4, .seed = 1, .before = first.read_after(per_epoch - 1)});
  std::set<int64_t> windows;
  int64_t step = 0;
  for (; second.read_after(step).back().epoch == 0; ++step) {
    for (const int64_t window : second.rows(step)) windows.insert(window);
  }
  EXPECT_LE(static_cast<int64_t>(windows.size()), first.windows() - 4 * (per_epoch - 1));
  EXPECT_EQ(second.read_after(step).size(), 1U);  // the earlier entry no longer matters
  EXPECT_NO_THROW(second.at(step + 3 * per_epoch));
  // Other data has no effect.
  const Batches other(all, {.T = 65536, .B = 4, .seed = 1, .before = {{all.hash() + 1, 1, 65536, 0, 8}}});
  EXPECT_EQ(other.rows(0), first.rows(0));
  EXPECT_THROW(Batches(all, {.T = 65536, .B = 4, .before = {{all.hash(), 1, 0, 0, 8}}}), std::invalid_argument);
}

}  // namespace
}  // namespace cyfa::test
