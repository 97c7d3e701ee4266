// The name that a misspelt word means.
#include "cyfa/io/nearest_name.h"

#include <gtest/gtest.h>

namespace cyfa::io {
namespace {

const std::vector<std::string> kOptions = {"--threads", "--top-k", "--top-p", "--temperature", "--tokenizer", "--json"};

TEST(NearestName, AFewEditsAreForgiven) {
  EXPECT_EQ(nearest_name("--thread", kOptions), "--threads");    // left out
  EXPECT_EQ(nearest_name("--tthreads", kOptions), "--threads");  // added
  EXPECT_EQ(nearest_name("--thredas", kOptions), "--threads");   // swapped
  EXPECT_EQ(nearest_name("--temperatur3", kOptions), "--temperature");
  EXPECT_EQ(nearest_name("--jsno", kOptions), "--json");
  EXPECT_EQ(nearest_name("--JSON", kOptions), "--json");
}

TEST(NearestName, TheNearestWinsNotTheFirst) {
  EXPECT_EQ(nearest_name("cyfa-800", {"cyfa-400m", "cyfa-800m"}), "cyfa-800m");
  EXPECT_EQ(nearest_name("bf61", {"fp32", "fp64", "bf16"}), "bf16");
}

TEST(NearestName, AWordThatBeginsOneNameAloneMeansIt) {
  EXPECT_EQ(nearest_name("--temp", kOptions), "--temperature");
  EXPECT_EQ(nearest_name("--to", kOptions), "");  // begins three
}

TEST(NearestName, OtherWordsMeanNothing) {
  EXPECT_EQ(nearest_name("frobnicate", kOptions), "");
  EXPECT_EQ(nearest_name("gpu", {"cpu", "cuda"}), "");  // one edit of three letters is another word
  EXPECT_EQ(nearest_name("", kOptions), "");
  EXPECT_EQ(nearest_name(std::string(1 << 20, 'x'), kOptions), "");
  EXPECT_EQ(nearest_name("json", {}), "");
}

TEST(NearestName, TheQuestion) {
  EXPECT_EQ(did_you_mean("trian", {"train", "bench"}), "; did you mean train?");
  EXPECT_EQ(did_you_mean("xyzzy", {"train", "bench"}), "");
}

}  // namespace
}  // namespace cyfa::io
