// The bounded JSON reader: what it accepts equals what a general parser accepts, and no text makes it recurse or grow.
#include "cyfa/io/json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "cyfa/io/file_error.h"
#include "cyfa/io/read_file.h"

namespace cyfa::io {
namespace {

using Json = nlohmann::ordered_json;

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "file.json", limits);
  } catch (const FileError& e) {
    return e.what();
  }
  return "";
}

std::string repeat(std::string_view text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

void expect(const std::string& error, const std::string& words) { EXPECT_NE(error.find(words), std::string::npos) << error; }

TEST(JsonReader, AcceptsWhatAGeneralParserAccepts) {
  const std::vector<std::string> seeds = {R"({"a": [1, -2.5e+3, true, null, {"b": "inner"}], "c": "é\u00e9\ud83d\ude42", "d": {}})",
                                          R"([[], {}, "x", 18446744073709551615, -9223372036854775808, 1e300])", "3", "\"text\"", "null"};
  std::mt19937 random(11);
  for (const std::string& seed : seeds) {
    for (int i = 0; i < 4000; ++i) {
      std::string text = seed;
      for (unsigned changes = i == 0 ? 0 : random() % 3 + 1; changes > 0; --changes) {
        const char c = "{}[]\",:\\u0019aet-+. \x01nrxl\xC3"[random() % 26];
        const size_t at = random() % text.size();
        if (random() % 3 == 0) {
          text.insert(at, 1, c);
        } else if (random() % 2 == 0 && text.size() > 1) {
          text.erase(at, 1);
        } else {
          text[at] = c;
        }
      }
      const Json wanted = Json::parse(text, nullptr, false);
      const std::string error = error_of(text);
      if (error.find("occurs twice") != std::string::npos) continue;
      EXPECT_EQ(error.empty(), !wanted.is_discarded()) << text << "\n" << error;
      if (error.empty()) {
        EXPECT_EQ(parse_json(text, "file.json"), wanted) << text;
      }
      EXPECT_EQ(json_or_null(text), error.empty() ? wanted : Json(nullptr)) << text;
    }
  }
}

TEST(JsonReader, BoundsTheDepth) {
  const auto nested = [](size_t depth) { return repeat("[", depth) + repeat("]", depth); };
  EXPECT_EQ(error_of(nested(32)), "");
  expect(error_of(nested(33)), "file.json: is nested more than 32 deep");
  expect(error_of(repeat("[", 110000)), "nested more than 32 deep");
  expect(error_of(repeat("{\"a\":", 110000)), "nested more than 32 deep");
  expect(error_of(nested(5), {.what = "a config", .depth = 4}), "nested more than 4 deep, which a config never is");
  EXPECT_TRUE(json_or_null(repeat("[", 110000)).is_null());
}

TEST(JsonReader, BoundsTheSize) {
  expect(error_of("[" + repeat("0,", 65536) + "0]"), "holds more than 65536 values");
  EXPECT_EQ(error_of("[" + repeat("0,", 65534) + "0]"), "");
  expect(error_of("\"" + repeat("x", 1 << 20) + "\""), "has 1048578 bytes; a JSON file has at most 1048576");
  expect(error_of("12", {.what = "a config", .bytes = 1}), "has 2 bytes; a config has at most 1");
}

// With a general parser the keys of an object are compared with one another: this text would take it an hour.
TEST(JsonReader, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 300000; ++i) text += (i == 0 ? "\"tensor." : ",\"tensor.") + std::to_string(i) + "\":0";
  const Json json = parse_json(text + "}", "file.json", {.bytes = 32 << 20, .values = 1 << 19});
  EXPECT_EQ(json.size(), 300000U);
  EXPECT_EQ(json.begin().key(), "tensor.0");
}

TEST(JsonReader, RefusesAKeyThatOccursTwice) {
  expect(error_of(R"({"a": 1, "b": 2, "a": 3})"), "the key \"a\" occurs twice in one object");
  expect(error_of(R"({"x": [{"a": 1, "\u0061": 3}]})"), "the key \"a\" occurs twice");
  EXPECT_EQ(error_of(R"({"a": {"a": 1}, "b": {"a": 2}})"), "");
}

TEST(JsonReader, ErrorsSayWhere) {
  expect(error_of("{\n\"a\": 1,\n}"), "is not JSON in UTF-8: error in line 3");
  expect(error_of(""), "is not JSON in UTF-8: error in line 1");
  expect(error_of(std::string("[1]\0[2]", 7)), "error in line 1, at byte 3");
  expect(error_of("[1] [2]"), "is not JSON");
  expect(error_of("\"\xFF\""), "is not JSON");
  EXPECT_LT(error_of("[\"" + std::string(100000, 'x')).size(), 200U);  // never the text itself
}

class ReadFile : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static std::string error(const std::filesystem::path& path, size_t most) {
    try {
      read_file(path, most, "a note");
    } catch (const FileError& e) {
      return e.what();
    }
    return "";
  }
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / ("read_file_" + std::to_string(::getpid()));
};

TEST_F(ReadFile, WholeFilesUpToALimit) {
  const std::filesystem::path path = folder_ / "note";
  std::ofstream(path) << "twelve bytes";
  EXPECT_EQ(read_file(path, 12, "a note"), "twelve bytes");
  expect(error(path, 11), "note: has 12 bytes; a note has at most 11");
  std::ofstream(path).flush();
  EXPECT_EQ(read_file(path, 0, "a note"), "");
  expect(error(folder_ / "absent", 1), "absent: open failed");
  expect(error(folder_, 1), "not a regular file");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect(error(folder_ / "pipe", 1), "not a regular file");
  // A sparse file of a terabyte is refused before anything is allocated.
  std::filesystem::resize_file(path, uintmax_t{1} << 40);
  expect(error(path, 1 << 20), "has 1099511627776 bytes");
}

}  // namespace
}  // namespace cyfa::io
