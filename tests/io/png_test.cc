// PNG files are parsed with zlib's inflate and crc32 and compared pixel by pixel; also images, the font and colour scales.
#include "cyfa/io/png.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>

#include "cyfa/io/colormap.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/font.h"

namespace cyfa::io {
namespace {

namespace fs = std::filesystem;

uint32_t big_endian(std::span<const std::byte> bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value = value << 8 | std::to_integer<uint32_t>(bytes[i]);
  }
  return value;
}

struct Chunk {
  std::string type;
  std::vector<std::byte> data;
};

// The chunks after the signature; checks every length and CRC.
std::vector<Chunk> chunks_of(std::span<const std::byte> file) {
  const std::array<int, 8> signature = {137, 80, 78, 71, 13, 10, 26, 10};
  for (size_t i = 0; i < signature.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(file[i]), signature[i]);
  }
  std::vector<Chunk> chunks;
  for (file = file.subspan(8); !file.empty();) {
    if (file.size() < 12 || big_endian(file) > file.size() - 12) {
      ADD_FAILURE() << "a chunk runs past the end of the file";
      break;
    }
    const size_t length = big_endian(file);
    const auto covered = file.subspan(4, 4 + length);
    EXPECT_EQ(big_endian(file.subspan(8 + length)),
              ::crc32(0, reinterpret_cast<const Bytef*>(covered.data()), static_cast<uInt>(covered.size())));
    const auto data = covered.subspan(4);
    chunks.push_back({std::string(reinterpret_cast<const char*>(covered.data()), 4), {data.begin(), data.end()}});
    file = file.subspan(12 + length);
  }
  return chunks;
}

Image decode(std::span<const std::byte> file) {
  const std::vector<Chunk> chunks = chunks_of(file);
  EXPECT_EQ(chunks.front().type, "IHDR");
  EXPECT_EQ(chunks.back().type, "IEND");
  EXPECT_TRUE(chunks.back().data.empty());
  const std::span<const std::byte> header = chunks.front().data;
  EXPECT_EQ(header.size(), 13u);
  EXPECT_EQ(big_endian(header.subspan(8)), 0x08020000u);
  EXPECT_EQ(std::to_integer<int>(header[12]), 0);
  Image image(static_cast<int>(big_endian(header)), static_cast<int>(big_endian(header.subspan(4))));

  std::vector<std::byte> packed;
  for (size_t i = 1; i + 1 < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i].type, "IDAT");
    packed.insert(packed.end(), chunks[i].data.begin(), chunks[i].data.end());
  }
  const size_t row_bytes = static_cast<size_t>(image.width) * 3;
  std::vector<uint8_t> raw((row_bytes + 1) * static_cast<size_t>(image.height));
  uLongf size = raw.size();
  EXPECT_EQ(::uncompress(raw.data(), &size, reinterpret_cast<const Bytef*>(packed.data()), packed.size()), Z_OK);
  EXPECT_EQ(size, raw.size());
  for (size_t y = 0; y < static_cast<size_t>(image.height); ++y) {
    const uint8_t* row = raw.data() + y * (row_bytes + 1);
    EXPECT_EQ(row[0], 0) << "the filter of row " << y;
    std::copy(row + 1, row + 1 + row_bytes, image.rgb.data() + y * row_bytes);
  }
  return image;
}

Image noise(int width, int height) {
  Image image(width, height);
  std::mt19937 random(3);
  for (uint8_t& sample : image.rgb) {
    sample = static_cast<uint8_t>(random());
  }
  return image;
}

TEST(Png, DecodesToTheSamePixels) {
  for (const auto& [width, height] : std::vector<std::pair<int, int>>{{1, 1}, {1, 9}, {9, 1}, {37, 23}, {256, 64}}) {
    const Image image = noise(width, height);
    const Image decoded = decode(encode_png(image));
    EXPECT_EQ(decoded.width, width);
    EXPECT_EQ(decoded.height, height);
    EXPECT_EQ(decoded.rgb, image.rgb);
  }
}

TEST(Png, SplitsLargeDataIntoChunks) {
  const Image image = noise(1000, 800);
  const std::vector<std::byte> file = encode_png(image);
  EXPECT_GE(chunks_of(file).size(), 5u);
  EXPECT_EQ(decode(file).rgb, image.rgb);
}

TEST(Png, WritesTheWholeFileOrNone) {
  std::string pattern = testing::TempDir() + "cyfa-png-XXXXXX";
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const fs::path folder = pattern;
  const Image image = noise(12, 5);
  write_png(folder / "a.png", image);
  std::ifstream stream(folder / "a.png", std::ios::binary);
  const std::string bytes = {std::istreambuf_iterator<char>(stream), {}};
  EXPECT_EQ(decode(std::as_bytes(std::span(bytes))).rgb, image.rgb);
  EXPECT_THROW(write_png(folder / "missing" / "a.png", image), FileError);
  EXPECT_THROW(write_png(folder / "b.png", Image(0, 5)), std::invalid_argument);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  fs::remove_all(folder);
}

TEST(Png, RefusesImpossibleImages) {
  EXPECT_THROW(Image(-1, 1), std::invalid_argument);
  EXPECT_THROW(Image(1, 32769), std::invalid_argument);
  Image image(2, 2);
  image.rgb.pop_back();
  EXPECT_THROW(encode_png(image), std::invalid_argument);
  Image lying(2, 2);
  lying.width = std::numeric_limits<int>::max();
  lying.height = std::numeric_limits<int>::max();
  EXPECT_THROW(encode_png(lying), std::invalid_argument);
}

int count(const Image& image, Color color) {
  int result = 0;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      result += image.get(x, y) == color ? 1 : 0;
    }
  }
  return result;
}

TEST(Image, ClipsWhatIsDrawnOutside) {
  constexpr Color kRed = {255, 0, 0};
  constexpr int kFar = std::numeric_limits<int>::max();
  Image image(10, 8);
  EXPECT_EQ(count(image, kWhite), 80);
  image.set(-1, 0, kRed);
  image.set(10, 0, kRed);
  image.set(0, 8, kRed);
  image.fill_rect(10, 0, 5, 5, kRed);
  image.fill_rect(-5, -5, 5, 5, kRed);
  image.fill_rect(2, 2, -1, 4, kRed);
  EXPECT_EQ(count(image, kRed), 0);
  image.fill_rect(8, 6, kFar, kFar, kRed);
  EXPECT_EQ(count(image, kRed), 4);
  image.fill_rect(-3, -3, 4, 4, kRed);
  EXPECT_EQ(count(image, kRed), 5);
  EXPECT_EQ(image.get(0, 0), kRed);
  EXPECT_EQ(image.get(-1, 0), kBlack);

  Image framed(10, 8);
  framed.draw_frame(1, 1, 4, 3, kRed);
  EXPECT_EQ(count(framed, kRed), 10);
  EXPECT_EQ(framed.get(2, 2), kWhite);
  Image board(20, 20);
  board.draw_image(15, 5, framed);
  EXPECT_EQ(board.get(16, 6), kRed);
  EXPECT_EQ(board.get(17, 7), kWhite);
}

Image text_image(const std::string& text) {
  Image image(text_width(text) + 2, kGlyphHeight + 2);
  draw_text(image, 1, 1, text, kBlack);
  return image;
}

TEST(Font, EveryPrintableCharacterHasItsOwnGlyph) {
  std::set<std::vector<uint8_t>> seen;
  for (char c = ' '; c <= '~'; ++c) {
    const Image image = text_image(std::string(1, c));
    EXPECT_TRUE(seen.insert(image.rgb).second) << c;
    EXPECT_EQ(count(image, kBlack) == 0, c == ' ') << c;
  }
  EXPECT_TRUE(seen.insert(text_image("\x7f").rgb).second) << "the box of missing characters looks like another";
}

TEST(Font, DrawsALetterWhereItIsAskedTo) {
  const std::array<std::string, 7> picture = {"#....", "#....", "#....", "#....", "#....", "#....", "#####"};
  Image image(40, 40);
  draw_text(image, 3, 4, "L", kBlack, 2);
  Image upward(40, 40);
  draw_text_upward(upward, 3, 30, "L", kBlack, 2);
  for (int y = 0; y < 7; ++y) {
    for (int x = 0; x < 5; ++x) {
      const Color expected = picture[static_cast<size_t>(y)][static_cast<size_t>(x)] == '#' ? kBlack : kWhite;
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(image.get(3 + 2 * x + i % 2, 4 + 2 * y + i / 2), expected);
        EXPECT_EQ(upward.get(3 + 2 * y + i % 2, 29 - 2 * x - i / 2), expected);
      }
    }
  }
  EXPECT_EQ(count(image, kBlack), 44);
  EXPECT_EQ(count(upward, kBlack), 44);
}

TEST(Font, MeasuresCodePointsAndBoxesWhatItLacks) {
  EXPECT_EQ(text_width(""), 0);
  EXPECT_EQ(text_width("abc", 2), 34);
  EXPECT_EQ(text_width("\xc3\xa9"), 5);
  EXPECT_EQ(text_image("\xc3\xa9\x01").rgb, text_image("\x7f\x7f").rgb);
}

double luminance(Color color) {
  const auto linear = [](uint8_t value) {
    const double x = value / 255.0;
    return x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b);
}

TEST(Colormap, LightnessFollowsTheValue) {
  for (int i = 1; i <= 100; ++i) {
    EXPECT_GT(luminance(color_at(ColorScale::kSequential, i / 100.0)), luminance(color_at(ColorScale::kSequential, (i - 1) / 100.0)));
    const double nearer = (i - 1) / 200.0;
    const double farther = i / 200.0;
    EXPECT_LT(luminance(color_at(ColorScale::kDiverging, 0.5 + farther)), luminance(color_at(ColorScale::kDiverging, 0.5 + nearer)));
    EXPECT_LT(luminance(color_at(ColorScale::kDiverging, 0.5 - farther)), luminance(color_at(ColorScale::kDiverging, 0.5 - nearer)));
  }
}

TEST(Colormap, NeighboursDifferLittleAndSignsMuch) {
  for (const ColorScale scale : {ColorScale::kSequential, ColorScale::kDiverging}) {
    for (int i = 1; i <= 255; ++i) {
      const Color a = color_at(scale, (i - 1) / 255.0);
      const Color b = color_at(scale, i / 255.0);
      EXPECT_LE(std::abs(a.r - b.r) + std::abs(a.g - b.g) + std::abs(a.b - b.b), 16) << i;
    }
  }
  const Color negative = color_at(ColorScale::kDiverging, 0);
  const Color positive = color_at(ColorScale::kDiverging, 1);
  EXPECT_GT(negative.b, negative.r + 100);
  EXPECT_GT(positive.r, positive.b + 100);
}

TEST(Colormap, ClampsAndMarksWhatIsNoNumber) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ColorScale scale : {ColorScale::kSequential, ColorScale::kDiverging}) {
    EXPECT_EQ(color_at(scale, inf), color_at(scale, 1));
    EXPECT_EQ(color_at(scale, -inf), color_at(scale, 0));
    for (int i = 0; i <= 1000; ++i) {
      EXPECT_NE(color_at(scale, i / 1000.0), color_at(scale, nan));
    }
  }
}

}  // namespace
}  // namespace cyfa::io
