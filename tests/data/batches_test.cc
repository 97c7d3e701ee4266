// The order of batches: permutations, ranks, epochs, document boundaries.
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "cyfa/data/batches.h"
#include "tests/data/data_folder.h"

namespace cyfa::test {
namespace {

TEST(Permutation, IsOne) {
  for (const int64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097}) {
    for (const uint64_t seed : {0, 1, 42}) {
      const Permutation permutation(size, seed);
      std::set<int64_t> seen;
      for (int64_t i = 0; i < size; ++i) seen.insert(permutation(i));
      EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), size - 1);
    }
  }
  EXPECT_THROW(Permutation(0, 1), std::invalid_argument);
}

TEST(Permutation, LooksDrawn) {
  const int64_t size = 10000;
  const Permutation one(size, 1), two(size, 2);
  int64_t fixed = 0, equal = 0, neighbours = 0;
  double sum = 0;  // correlation of index and value: no trend
  for (int64_t i = 0; i < size; ++i) {
    fixed += one(i) == i;
    equal += one(i) == two(i);
    neighbours += i > 0 && std::abs(one(i) - one(i - 1)) == 1;
    sum += (static_cast<double>(i) / size - .5) * (static_cast<double>(one(i)) / size - .5);
  }
  EXPECT_LT(fixed, 8);
  EXPECT_LT(equal, 8);
  EXPECT_LT(neighbours, 12);
  EXPECT_LT(std::abs(sum / size), .003);  // 1/12 for the identity
  const Permutation large(int64_t{1} << 40, 3);
  for (int64_t i = 0; i < 100; ++i) EXPECT_LT(large(i), int64_t{1} << 40);
}

class BatchesTest : public testing::Test {
 protected:
  // 40 documents of 0 to 99 bytes, with a BOS token before each, in several shards.
  void SetUp() override {
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += R"({"text": ")" + std::string(static_cast<size_t>(i * 37 % 100), static_cast<char>('a' + i % 26)) + "\"}\n";
    write_file(folder_ / "in.jsonl", lines);
    prepare(folder_ / "data", folder_ / "in.jsonl", [](PrepareOptions& o) { o.shard_tokens = 300; });
    data_.emplace(TokenData::open(folder_ / "data"));
    all_ = tokens_of(*data_);
  }
  static std::vector<int64_t> list(const at::Tensor& x) { return {x.const_data_ptr<int64_t>(), x.const_data_ptr<int64_t>() + x.numel()}; }

  Folder folder_;
  std::optional<TokenData> data_;
  std::vector<int64_t> all_;
};

TEST_F(BatchesTest, WindowsInOrder) {
  ASSERT_GT(data_->manifest().shards.size(), 3U);
  const Batches batches(*data_, {.T = 13, .B = 3, .shuffle = false});
  EXPECT_EQ(batches.windows(), (data_->tokens() - 1) / 13);
  EXPECT_EQ(batches.per_epoch(), batches.windows() / 3);
  for (int64_t step = 0; step < batches.per_epoch(); ++step) {
    const Batch batch = batches.at(step);
    ASSERT_EQ(batch.ids.sizes(), (std::vector<int64_t>{3, 14}));
    EXPECT_FALSE(batch.cu_seqlens.has_value());
    for (int64_t row = 0; row < 3; ++row) {
      const auto begin = all_.begin() + (step * 3 + row) * 13;
      EXPECT_EQ(list(batch.ids[row]), std::vector<int64_t>(begin, begin + 14));
    }
  }
  EXPECT_TRUE(batches.at(batches.per_epoch()).ids.equal(batches.at(0).ids));
}

TEST_F(BatchesTest, RanksAreDisjointAndTogetherComplete) {
  for (const int ranks : {1, 2, 3, 5}) {
    std::deque<Batches> each;
    for (int rank = 0; rank < ranks; ++rank)
      each.emplace_back(*data_, BatchOptions{.T = 10, .B = 2, .seed = 7, .rank = rank, .ranks = ranks});
    const int64_t steps = each[0].per_epoch();
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (int64_t step = epoch * steps; step < (epoch + 1) * steps; ++step) {
        for (const Batches& one : each) {
          for (const int64_t row : one.rows(step)) EXPECT_TRUE(seen.insert(row).second);
        }
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), steps * 2 * ranks);
      EXPECT_LT(*seen.rbegin(), each[0].windows());
      EXPECT_LT(each[0].windows() - static_cast<int64_t>(seen.size()), 2 * ranks);
    }
  }
  // The rows of all ranks together are those of a single rank with as many rows.
  const Batches whole(*data_, {.T = 10, .B = 4, .seed = 7});
  const Batches first(*data_, {.T = 10, .B = 2, .seed = 7, .rank = 0, .ranks = 2}),
      second(*data_, {.T = 10, .B = 2, .seed = 7, .rank = 1, .ranks = 2});
  for (int64_t step = 0; step < 20; ++step) EXPECT_TRUE(at::cat({first.at(step).ids, second.at(step).ids}).equal(whole.at(step).ids));
}

TEST_F(BatchesTest, AnyStepIsAFunctionOfItsNumber) {
  const BatchOptions options = {.T = 11, .B = 3, .seed = 5, .reset_documents = true};
  const Batches batches(*data_, options);
  std::vector<at::Tensor> ids;
  for (int64_t step = 0; step < 3 * batches.per_epoch(); ++step) ids.push_back(batches.at(step).ids);
  const TokenData again = TokenData::open(folder_ / "data");
  const Batches other(again, options);
  for (int64_t step = 3 * batches.per_epoch() - 1; step >= 0; step -= 2)
    EXPECT_TRUE(other.at(step).ids.equal(ids[static_cast<size_t>(step)]));
  // Every epoch and every seed has its own order.
  EXPECT_NE(batches.rows(0), batches.rows(batches.per_epoch()));
  EXPECT_NE(batches.rows(0), Batches(*data_, {.T = 11, .B = 3, .seed = 6}).rows(0));
  EXPECT_EQ(batches.rows(int64_t{1} << 50).size(), 3U);
}

TEST_F(BatchesTest, BordersAtDocuments) {
  const int64_t T = 50, B = 4;
  const Batches batches(*data_, {.T = T, .B = B, .reset_documents = true});
  for (int64_t step = 0; step < batches.per_epoch(); ++step) {
    const Batch batch = batches.at(step);
    std::vector<int64_t> wanted;
    const at::Tensor inputs = batch.ids.narrow(1, 0, T).reshape(-1);
    for (int64_t i = 0; i < B * T; ++i) {
      if (i % T == 0 || inputs[i].item<int64_t>() == 256) wanted.push_back(i);
    }
    wanted.push_back(B * T);
    ASSERT_TRUE(batch.cu_seqlens.has_value());
    EXPECT_EQ(list(*batch.cu_seqlens), wanted);
  }
}

TEST_F(BatchesTest, WhatCannotBeIsRefused) {
  const auto message = [&](const BatchOptions& options) -> std::string {
    try {
      const Batches batches(*data_, options);
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "";
  };
  const int64_t tokens = data_->tokens();
  EXPECT_NE(message({.T = tokens, .B = 1}).find("has " + std::to_string(tokens)), std::string::npos);
  EXPECT_EQ(message({.T = tokens - 1, .B = 1}), "");
  EXPECT_NE(message({.T = 100, .B = 1000}).find("1000 windows"), std::string::npos);
  for (const BatchOptions& bad : {BatchOptions{.T = 0},
                                  {.T = -1},
                                  {.T = 5, .B = 0},
                                  {.T = 5, .B = 1, .rank = 1},
                                  {.T = 5, .B = 1, .rank = -1},
                                  {.T = 5, .B = 1, .ranks = 0}}) {
    EXPECT_NE(message(bad), "");
  }
  EXPECT_THROW(Batches(*data_, {.T = 5, .B = 1}).at(-1), std::invalid_argument);
}

}  // namespace
}  // namespace cyfa::test
