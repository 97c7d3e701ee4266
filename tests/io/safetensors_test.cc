// Round trips, and every way in which a safetensors file can be invalid. The invalid files are assembled by hand and not by the writer
// under test.
#include "cyfa/io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <span>

#include "cyfa/io/atomic_file.h"
#include "cyfa/io/file_error.h"

namespace cyfa::io {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "cyfa-io-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "t.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  size_t files_in_folder() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator())); }

  fs::path folder_;
  fs::path path_;
};

// Creates a new file each time: ext4 flushes a file that is truncated and rewritten, which would make thousands of them slow.
void write_bytes(const fs::path& path, const std::string& bytes) {
  fs::remove(path);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good());
}

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string length_prefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(length >> (8 * i));
  }
  return bytes;
}

std::string assemble(const std::string& header, size_t data_bytes) {
  std::string file = length_prefix(header.size()) + header;
  for (size_t i = 0; i < data_bytes; ++i) {
    file += static_cast<char>(i);
  }
  return file;
}

// The message of the FileError thrown by opening the file; empty if it opens.
std::string open_error(const fs::path& path) {
  try {
    SafetensorsFile::open(path);
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

template <class T>
NamedTensor named(const std::string& name, DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {name, {dtype, std::move(shape), reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)}};
}

std::string bytes_of(const TensorView& tensor) { return {reinterpret_cast<const char*>(tensor.data), tensor.bytes}; }

// Invariants of every file that opens: the tensors tile the data section, and their bytes can be read.
void expect_consistent(const SafetensorsFile& file) {
  const std::string bytes = read_bytes(file.path());
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  size_t total = 0;
  for (const std::string& name : file.names()) {
    const TensorView& tensor = file.at(name);
    uint64_t numel = 1;
    for (const int64_t extent : tensor.shape) {
      ASSERT_GE(extent, 0);
      numel *= static_cast<uint64_t>(extent);
    }
    ASSERT_EQ(tensor.bytes, numel * dtype_size(tensor.dtype));
    ASSERT_EQ(to_double(tensor).size(), numel);
    total += tensor.bytes;
  }
  ASSERT_EQ(8 + header + total, bytes.size());
}

// True: the file opens and is consistent. False: FileError. Anything else fails the test.
bool opens_or_refuses(const fs::path& path) {
  try {
    const SafetensorsFile file = SafetensorsFile::open(path);
    expect_consistent(file);
    return true;
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
    return false;
  }
}

std::string small_file() {
  return assemble(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                  R"("b":{"dtype":"I64","shape":[],"data_offsets":[24,32]},"c":{"dtype":"BF16","shape":[0,5],"data_offsets":[32,32]}}  )",
                  32);
}

constexpr std::array kAllDTypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                                   DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};

TEST_F(Safetensors, RoundTripsEveryDTypeBitForBit) {
  std::mt19937_64 random(7);
  std::vector<std::vector<uint8_t>> storage;
  std::vector<NamedTensor> tensors;
  for (const DType dtype : kAllDTypes) {
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{}, {5}, {3, 1, 7}, {0}, {4, 0, 2}}) {
      size_t bytes = dtype_size(dtype);
      for (const int64_t extent : shape) {
        bytes *= static_cast<size_t>(extent);
      }
      std::vector<uint8_t>& values = storage.emplace_back(bytes);
      // Random bits, including NaN payloads and infinities.
      std::generate(values.begin(), values.end(), [&] { return static_cast<uint8_t>(random()); });
      tensors.push_back(named("t." + std::to_string(tensors.size()), dtype, shape, values));
    }
  }
  const std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"", "empty key"}, {"quote\"\\\n", "\xc3\xa9 \xf0\x9f\x8c\x80 \x01"}};
  write_safetensors(path_, tensors, metadata);

  const SafetensorsFile file = SafetensorsFile::open(path_);
  expect_consistent(file);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.names().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(file.names()[i], tensors[i].name);
    const TensorView& read = file.at(tensors[i].name);
    EXPECT_EQ(read.dtype, tensors[i].tensor.dtype);
    EXPECT_EQ(read.shape, tensors[i].tensor.shape);
    EXPECT_EQ(bytes_of(read), bytes_of(tensors[i].tensor));
  }
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Safetensors, WritesNothingButTheHeaderForNoTensors) {
  write_safetensors(path_, {});
  EXPECT_EQ(read_bytes(path_), length_prefix(8) + "{}      ");
  const SafetensorsFile file = SafetensorsFile::open(path_);
  EXPECT_TRUE(file.names().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST_F(Safetensors, LaysTheDataOutInOrderFromAMultipleOfEight) {
  const std::vector<uint8_t> first = {1, 2, 3};
  const std::vector<float> second = {1.5f, -2.0f};
  for (size_t name_length = 1; name_length < 10; ++name_length) {
    const std::string name(name_length, 'n');
    write_safetensors(path_, std::vector{named("z", DType::kU8, {3}, first), named(name, DType::kF32, {2}, second)});
    const std::string bytes = read_bytes(path_);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    EXPECT_EQ((8 + header) % 8, 0u);
    EXPECT_EQ(bytes.substr(8 + header), std::string("\1\2\3") + std::string(reinterpret_cast<const char*>(second.data()), 8));
    // The floats begin 3 bytes into the data section and are not aligned.
    EXPECT_EQ(SafetensorsFile::open(path_).read<float>(name), second);
  }
}

TEST_F(Safetensors, ReadsAFileOfAnotherWriter) {
  write_bytes(path_, small_file());
  SafetensorsFile file = SafetensorsFile::open(path_);
  const std::vector<std::string> names = {"a", "b", "c"};
  EXPECT_EQ(file.names(), names);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_TRUE(file.contains("b"));
  EXPECT_FALSE(file.contains("d"));
  EXPECT_EQ(file.at("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.read<int64_t>("b"), std::vector<int64_t>{0x1f1e1d1c1b1a1918});
  EXPECT_EQ(file.at("c").numel(), 0);

  const TensorView& view = file.at("a");
  const std::byte* data = view.data;
  SafetensorsFile moved = std::move(file);
  EXPECT_EQ(moved.at("a").data, data);
  EXPECT_EQ(static_cast<int>(moved.at("a").data[5]), 5);
}

TEST_F(Safetensors, TakesTheFieldsAndTensorsInAnyOrder) {
  write_bytes(path_, assemble(R"({"late":{"data_offsets":[2,6],"shape":[1],"dtype":"F32"},"__metadata__":{},)"
                              R"("early":{"shape":[2],"dtype":"U8","data_offsets":[0,2]}})",
                              6));
  const SafetensorsFile file = SafetensorsFile::open(path_);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"late", "early"}));
  EXPECT_EQ(file.read<uint8_t>("early"), (std::vector<uint8_t>{0, 1}));
}

TEST_F(Safetensors, NamesFileTensorAndCauseWhenAskedForTheWrongThing) {
  write_bytes(path_, small_file());
  const SafetensorsFile file = SafetensorsFile::open(path_);
  const auto message = [](auto action) {
    try {
      action();
    } catch (const FileError& error) {
      return std::string(error.what());
    }
    return std::string("no FileError");
  };
  EXPECT_EQ(message([&] { file.at("x\x1b"); }), path_.string() + R"(: has no tensor "x\x1b" among its 3)");
  EXPECT_EQ(message([&] { file.read<double>("a"); }), path_.string() + R"(: tensor "a": dtype is F32; wanted F64)");
  std::array<std::byte, 20> room = {};
  EXPECT_EQ(message([&] { file.copy_to("a", DType::kF32, room); }),
            path_.string() + R"(: tensor "a": shape [2, 3] has 24 bytes; wanted 20)");
}

TEST_F(Safetensors, ConvertsEveryDTypeToDouble) {
  const auto converted = [](DType dtype, auto values) {
    return to_double(named("", dtype, {static_cast<int64_t>(values.size())}, values).tensor);
  };
  using Doubles = std::vector<double>;
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<uint16_t> halves = {0x0000, 0x3c00, 0xc000, 0x3555, 0x7bff, 0x0400, 0x0001, 0x83ff, 0x7c00, 0xfc00};
  EXPECT_EQ(converted(DType::kF16, halves),
            (Doubles{0, 1, -2, 0.333251953125, 65504, std::ldexp(1, -14), std::ldexp(1, -24), -std::ldexp(1023, -24), inf, -inf}));
  EXPECT_TRUE(std::isnan(converted(DType::kF16, std::vector<uint16_t>{0x7e01})[0]));
  EXPECT_EQ(converted(DType::kBF16, std::vector<uint16_t>{0x3f80, 0xc040, 0x0001, 0x7f80}), (Doubles{1, -3, std::ldexp(1, -133), inf}));
  EXPECT_EQ(converted(DType::kF64, Doubles{-0.1}), Doubles{-0.1});
  EXPECT_EQ(converted(DType::kF32, std::vector<float>{0.1f}), Doubles{double{0.1f}});
  EXPECT_EQ(converted(DType::kI64, std::vector<int64_t>{-5, int64_t{1} << 52}), (Doubles{-5, 4503599627370496.0}));
  EXPECT_EQ(converted(DType::kI32, std::vector<int32_t>{-2147483647}), Doubles{-2147483647.0});
  EXPECT_EQ(converted(DType::kI16, std::vector<int16_t>{-32768}), Doubles{-32768});
  EXPECT_EQ(converted(DType::kI8, std::vector<int8_t>{-128, 127}), (Doubles{-128, 127}));
  EXPECT_EQ(converted(DType::kU8, std::vector<uint8_t>{255}), Doubles{255});
  EXPECT_EQ(converted(DType::kBool, std::vector<uint8_t>{0, 1, 7}), (Doubles{0, 1, 1}));
}

struct Malformed {
  std::string header;
  size_t data_bytes;
  std::string complaint;  // part of the message
};

TEST_F(Safetensors, RefusesEveryMalformedHeaderWithItsReason) {
  const std::string deep = std::string(1'000'000, '[');
  const std::string long_name = std::string(100'000, 'x');
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const auto repeat = [](const std::string& text, int times) {
    std::string result;
    for (int i = 0; i < times; ++i) {
      result += text;
    }
    return result;
  };
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const auto b = [](const std::string& offsets, const std::string& shape = "[4]") {
    return R"("b":{"dtype":"U8","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const std::vector<Malformed> cases = {
      // Invalid JSON.
      {"", 0, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"\xef\xbb\xbf{}", 0, "does not begin with '{'"},
      {"{", 0, "not valid JSON"},
      {"{}}", 0, "not valid JSON"},
      {"{} x", 0, "not valid JSON"},
      {"{,}", 0, "not valid JSON"},
      {"{" + a + ",}", 4, "not valid JSON"},
      {std::string("{}\0\0", 4), 0, "zero byte at its byte 2"},
      {"{\"\xff\":{}}", 0, "not valid JSON in UTF-8"},
      {"{\"\xc0\xaf\":{}}", 0, "not valid JSON in UTF-8"},
      {"{\"\xed\xa0\x80\":{}}", 0, "not valid JSON in UTF-8"},
      {R"({"\ud800":{}})", 0, "not valid JSON in UTF-8"},
      {"{\"a\n\":{}}", 0, "not valid JSON"},
      // Nesting.
      {"{\"a\":" + deep, 0, "tensor \"a\": came an array; wanted an object"},
      {"{\"__metadata__\":" + deep, 0, "__metadata__: came an array; wanted an object"},
      {tensor("\"U8\"", deep, "[0,0]"), 0, "tensor \"a\": shape: came an array; wanted non-negative integers"},
      {repeat("{\"a\":", 300'000), 0, "has the unknown field \"a\""},
      {"{\"a\":{\"dtype\":" + repeat("{\"a\":", 300'000), 0, "dtype: came an object; wanted a string"},
      // Metadata.
      {R"({"__metadata__":[]})", 0, "__metadata__: came an array"},
      {R"({"__metadata__":"x"})", 0, "__metadata__: came the string \"x\"; wanted an object"},
      {R"({"__metadata__":{"k":1}})", 0, "__metadata__ entry \"k\": came the number 1; wanted a string"},
      {R"({"__metadata__":{"k":null}})", 0, "entry \"k\": came null; wanted a string"},
      {R"({"__metadata__":{"k":{}}})", 0, "entry \"k\": came an object; wanted a string"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "entry \"k\" appears twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "\"__metadata__\" appears twice"},
      // Fields.
      {R"({"a":1})", 0, "tensor \"a\": came the number 1; wanted an object"},
      {R"({"a":true})", 0, "tensor \"a\": came true"},
      {R"({"a":{}})", 0, "tensor \"a\" has no dtype"},
      {R"({"a":{"dtype":"U8","shape":[0]}})", 0, "tensor \"a\" has no data_offsets"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0, "tensor \"a\" has no shape"},
      {R"({"a":{"dtype":"U8","dtype":"U8"}})", 0, "dtype appears twice"},
      {R"({"a":{"shape":[],"shape":[]}})", 0, "shape appears twice"},
      {R"({"a":{"data_offsets":[0,0],"data_offsets":[0,0]}})", 0, "data_offsets appears twice"},
      {R"({"a":{"strides":[1]}})", 0, "unknown field \"strides\""},
      {"{" + a + "," + a + "}", 4, "the name \"a\" appears twice"},
      {"{\"" + long_name + "\":1}", 0, "x...\": came the number 1"},
      // Types.
      {tensor("\"F8_E4M3\"", "[1]", "[0,1]"), 1, "tensor \"a\": dtype is \"F8_E4M3\"; supported are F64, F32"},
      {tensor("\"U64\"", "[1]", "[0,8]"), 8, "dtype is \"U64\""},
      {tensor("\"f32\"", "[1]", "[0,4]"), 4, "dtype is \"f32\""},
      {tensor("\"\"", "[1]", "[0,4]"), 4, "dtype is \"\""},
      {tensor("4", "[1]", "[0,4]"), 4, "dtype: came the number 4; wanted a string"},
      // Shapes.
      {tensor("\"U8\"", "4", "[0,4]"), 4, "shape: came the number 4; wanted an array"},
      {tensor("\"U8\"", "[-4]", "[0,4]"), 4, "shape: came the signed number -4"},
      {tensor("\"U8\"", "[4.0]", "[0,4]"), 4, "shape: came the number 4.0"},
      {tensor("\"U8\"", "[4e0]", "[0,4]"), 4, "shape: came the number 4e0"},
      {tensor("\"U8\"", "[\"4\"]", "[0,4]"), 4, "shape: came the string"},
      {tensor("\"U8\"", "[null]", "[0,4]"), 4, "shape: came null"},
      {tensor("\"U8\"", "[9223372036854775808]", "[0,4]"), 4, "shape holds 9223372036854775808"},
      {tensor("\"U8\"", "[18446744073709551616]", "[0,4]"), 4, "shape: came the number 18446744073709551616"},
      {tensor("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, "overflows 64 bits"},
      {tensor("\"U8\"", "[4294967297,4294967296,4294967296]", "[0,4]"), 4, "overflows 64 bits"},
      {tensor("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, "overflows 64 bits"},
      {tensor("\"U8\"", "[0,4294967296,4294967296]", "[0,0]"), 0, "overflows 64 bits"},
      {tensor("\"U8\"", "[4294967296,4294967296,0]", "[0,0]"), 0, "overflows 64 bits"},
      {tensor("\"U8\"", "[0,1048577]", "[0,0]"), 0, "has no elements; its other dimensions make more than 1048576"},
      {tensor("\"F64\"", "[1048577,0]", "[0,0]"), 0, "has no elements; its other dimensions make more than 1048576"},
      {tensor("\"U8\"", "[1" + repeat(",1", 64) + "]", "[0,1]"), 1, "more than 64 dimensions"},
      {tensor("\"U8\"", "[1" + repeat(",1", 1'000'000) + "]", "[0,1]"), 1, "more than 64 dimensions"},
      // Offsets.
      {tensor("\"U8\"", "[4]", "4"), 4, "data_offsets: came the number 4; wanted [begin, end]"},
      {tensor("\"U8\"", "[4]", "[]"), 4, "data_offsets has 0 numbers"},
      {tensor("\"U8\"", "[4]", "[0]"), 4, "data_offsets has 1 numbers"},
      {tensor("\"U8\"", "[4]", "[0,4,4]"), 4, "data_offsets has more than 2 numbers"},
      {tensor("\"U8\"", "[4]", "[0,-4]"), 4, "data_offsets: came the signed number -4"},
      {tensor("\"U8\"", "[4]", "[0,4.5]"), 4, "data_offsets: came the number 4.5"},
      {tensor("\"U8\"", "[4]", "[0,5]"), 4, "[0, 5] do not fit"},
      {tensor("\"U8\"", "[4]", "[0,18446744073709551615]"), 4, "do not fit"},
      {tensor("\"U8\"", "[4]", "[18446744073709551612,0]"), 4, "do not fit"},
      {tensor("\"U8\"", "[4]", "[18446744073709551611,18446744073709551615]"), 4, "do not fit"},
      {tensor("\"U8\"", "[4]", "[0,99999999999999999999]"), 4, "data_offsets: came the number 99999999999999999999"},
      {tensor("\"U8\"", "[4]", "[4,0]"), 4, "do not fit; wanted begin <= end <= 4"},
      {tensor("\"U8\"", "[4]", "[0,3]"), 4, "3 bytes of data; shape [4] of U8 wants 4"},
      {tensor("\"F32\"", "[4]", "[0,4]"), 4, "4 bytes of data; shape [4] of F32 wants 16"},
      {tensor("\"U8\"", "[0]", "[0,4]"), 4, "4 bytes of data; shape [0] of U8 wants 0"},
      {tensor("\"U8\"", "[]", "[0,0]"), 0, "0 bytes of data; shape [] of U8 wants 1"},
      // Coverage.
      {"{}", 1, "the data section has 1 bytes; the tensors end at byte 0"},
      {"{" + a + "}", 5, "the data section has 5 bytes; the tensors end at byte 4"},
      {tensor("\"U8\"", "[3]", "[1,4]"), 4, "begins at byte 1 of the data section; wanted 0"},
      {"{" + a + "," + b("[5,9]") + "}", 9, "tensor \"b\": begins at byte 5 of the data section; wanted 4, the end of tensor \"a\""},
      {"{" + a + "," + b("[3,7]") + "}", 7, "they overlap"},
      {"{" + a + "," + b("[0,4]") + "}", 4, "they overlap"},
      {"{" + a + "," + b("[2,2]", "[0]") + "}", 4, "they overlap"},
  };
  for (const Malformed& item : cases) {
    write_bytes(path_, assemble(item.header, item.data_bytes));
    const std::string error = open_error(path_);
    EXPECT_NE(error.find(item.complaint), std::string::npos) << item.header.substr(0, 200) << "\ngave: " << error;
    EXPECT_TRUE(error.starts_with(path_.string() + ": ")) << error;
    EXPECT_LT(error.size(), path_.string().size() + 400);
  }
}

TEST_F(Safetensors, RefusesHeaderLengthsBeyondTheFile) {
  for (const uint64_t length : {uint64_t{3}, uint64_t{100}, uint64_t{100} << 20, (uint64_t{100} << 20) + 1, uint64_t{1} << 62,
                                std::numeric_limits<uint64_t>::max() - 7, std::numeric_limits<uint64_t>::max()}) {
    write_bytes(path_, length_prefix(length) + "{}");
    EXPECT_NE(open_error(path_).find("the header claims " + std::to_string(length) + " bytes; at most 2"), std::string::npos);
  }
}

TEST_F(Safetensors, RefusesHeadersBeyond100MiBThoughTheFileHoldsThem) {
  const uint64_t length = (uint64_t{100} << 20) + 1;
  write_bytes(path_, length_prefix(length) + "{}");
  fs::resize_file(path_, 8 + length);  // sparse
  EXPECT_NE(open_error(path_).find("at most 104857600"), std::string::npos);
}

TEST_F(Safetensors, RefusesWhatIsNoRegularFile) {
  EXPECT_NE(open_error(folder_ / "missing").find("open failed: No such file"), std::string::npos);
  EXPECT_NE(open_error(folder_).find("not a regular file"), std::string::npos);
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(open_error(pipe).find("not a regular file"), std::string::npos);
}

TEST_F(Safetensors, RefusesEveryTruncation) {
  const std::string whole = small_file();
  for (size_t size = 0; size < whole.size(); ++size) {
    write_bytes(path_, whole.substr(0, size));
    EXPECT_FALSE(opens_or_refuses(path_)) << size << " bytes of " << whole.size();
  }
  write_bytes(path_, whole + "x");
  EXPECT_FALSE(opens_or_refuses(path_));
  write_bytes(path_, whole);
  EXPECT_TRUE(opens_or_refuses(path_));
}

long peak_memory_kib() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST_F(Safetensors, SurvivesEveryBitFlip) {
  const long before = peak_memory_kib();
  const std::string whole = small_file();
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    write_bytes(path_, flipped);
    opens_or_refuses(path_);
    ASSERT_FALSE(HasFatalFailure()) << "bit " << bit;
  }
  EXPECT_LT(peak_memory_kib() - before, 64 * 1024);
}

TEST_F(Safetensors, SurvivesRandomMutations) {
  const long before = peak_memory_kib();
  std::mt19937 random(20240601);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  const std::string whole = small_file();
  const std::string alphabet = "{}[],:\"0123456789-.eE+ \\ntfu\xff\x80";
  const std::vector<std::string> fragments = {"18446744073709551615",
                                              "9223372036854775807",
                                              "4294967296",
                                              "-1",
                                              "[[",
                                              "{\"a\":",
                                              "null",
                                              "\"dtype\":",
                                              "\"F64\"",
                                              "\\u0000",
                                              "1e9",
                                              ","};
  int opened = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string mutated = whole;
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = 8 + below(mutated.size() - 8);
      switch (below(6)) {
        case 0: mutated[at] = static_cast<char>(random()); break;
        case 1: mutated[at] = alphabet[below(alphabet.size())]; break;
        case 2: mutated.erase(at, 1 + below(4)); break;
        case 3: mutated.insert(at, fragments[below(fragments.size())]); break;
        case 4: mutated.insert(at, mutated.substr(8 + below(mutated.size() - 8), below(40))); break;
        default: mutated[below(8)] = static_cast<char>(random()); break;
      }
    }
    if (below(2) == 0) {
      // Adjust the header length, so that the mutation reaches the parser.
      const uint64_t header = mutated.size() > 40 ? mutated.size() - 40 : 0;
      mutated.replace(0, 8, length_prefix(header));
    }
    write_bytes(path_, mutated);
    opened += opens_or_refuses(path_) ? 1 : 0;
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
  // Mutations of names, metadata or data only must still open.
  EXPECT_GT(opened, 50);
  EXPECT_LT(peak_memory_kib() - before, 64 * 1024);
}

TEST_F(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  const std::vector<uint8_t> values = {1, 2, 3, 4};
  const auto error = [&](const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata = {}) {
    try {
      write_safetensors(path_, tensors, metadata);
    } catch (const FileError& caught) {
      return std::string(caught.what());
    }
    return std::string();
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const NamedTensor good = named("a", DType::kU8, {4}, values);
  expect(error({good, good}), "tensor \"a\": the name appears twice");
  expect(error({named("__metadata__", DType::kU8, {4}, values)}), "reserved");
  expect(error({named("a", DType::kF32, {2}, values)}), "4 bytes of data; shape [2] of F32 wants 8");
  expect(error({named("a", DType::kU8, {-4}, values)}), "the size of shape [-4] is negative");
  expect(error({named("a", DType::kU8, {int64_t{1} << 40, int64_t{1} << 40}, values)}), "overflows 64 bits");
  expect(error({named("a", DType::kU8, std::vector<int64_t>(65, 1), values)}), "65 dimensions");
  expect(error({{"a", {DType::kU8, {4}, nullptr, 4}}}), "data is null");
  expect(error({named("\xff", DType::kU8, {4}, values)}), "cannot write \"\\xff\": not valid UTF-8");
  expect(error({good}, {{"k", "\xc0"}}), "not valid UTF-8");
  EXPECT_EQ(files_in_folder(), 0u);
}

TEST_F(Safetensors, AFailedWriteLeavesTheOldFileAndNoOther) {
  const std::vector<uint8_t> small = {42};
  write_safetensors(path_, std::vector{named("old", DType::kU8, {1}, small)});
  const std::string old = read_bytes(path_);

  // A file size limit simulates a full disk: one write is short and the next one fails.
  const std::vector<uint8_t> large(1 << 20);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit tight = limit;
  tight.rlim_cur = 100'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  std::string message;
  try {
    write_safetensors(path_, std::vector{named("new", DType::kU8, {1 << 20}, large)});
  } catch (const FileError& error) {
    message = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);

  EXPECT_NE(message.find(path_.string() + ": write with "), std::string::npos) << message;
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_EQ(read_bytes(path_), old);
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Safetensors, WritingWhereNoFileCanStandThrowsAndLeavesNothing) {
  EXPECT_THROW(write_safetensors(folder_ / "missing" / "t.safetensors", {}), FileError);
  EXPECT_THROW(write_safetensors("", {}), FileError);
  fs::create_directory(path_);
  EXPECT_THROW(write_safetensors(path_, {}), FileError);
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Safetensors, ReplacesAMappedFileWithoutDisturbingItsReader) {
  const std::vector<int32_t> before = {1, 2, 3};
  const std::vector<int32_t> after = {4};
  write_safetensors(path_, std::vector{named("t", DType::kI32, {3}, before)});
  const SafetensorsFile reader = SafetensorsFile::open(path_);
  write_safetensors(path_, std::vector{named("t", DType::kI32, {1}, after)});
  EXPECT_EQ(reader.read<int32_t>("t"), before);
  EXPECT_EQ(SafetensorsFile::open(path_).read<int32_t>("t"), after);
}

TEST_F(Safetensors, TheWrittenFileHasTheUsualPermissions) {
  const mode_t mask = ::umask(027);
  write_safetensors(path_, {});
  ::umask(mask);
  struct stat status = {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_F(Safetensors, AnAbandonedAtomicFileLeavesNothing) {
  const std::string text = "half";
  {
    AtomicFile file(path_);
    file.write(std::as_bytes(std::span(text)));
    EXPECT_EQ(files_in_folder(), 1u);
    EXPECT_FALSE(fs::exists(path_));
  }
  EXPECT_EQ(files_in_folder(), 0u);
}

TEST_F(Safetensors, AMovedMappedFileKeepsItsBytes) {
  write_bytes(path_, "abc");
  MappedFile first(path_);
  const std::byte* data = first.bytes().data();
  MappedFile second = std::move(first);
  EXPECT_EQ(second.bytes().data(), data);
  EXPECT_EQ(second.bytes().size(), 3u);
  EXPECT_TRUE(first.bytes().empty());
  second = MappedFile();
  EXPECT_TRUE(second.bytes().empty());
}

}  // namespace
}  // namespace cyfa::io
