// See png.h.
#include "cyfa/io/png.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cyfa/io/atomic_file.h"

namespace cyfa::io {
namespace {

constexpr int kLongestSide = 32768;
constexpr size_t kPixelBytes = 3;
// PNG allows chunks of up to 2^31 - 1 bytes; many readers prefer smaller ones.
constexpr size_t kDataChunk = size_t{1} << 20;

std::string size_text(int width, int height) { return std::to_string(width) + " x " + std::to_string(height); }

void append_big_endian(std::vector<std::byte>& out, uint32_t value) {
  for (const int shift : {24, 16, 8, 0}) {
    out.push_back(static_cast<std::byte>(value >> shift));
  }
}

// A PNG chunk: length, type, data, and the CRC of type and data.
void append_chunk(std::vector<std::byte>& out, std::string_view type, std::span<const std::byte> data) {
  append_big_endian(out, static_cast<uint32_t>(data.size()));
  const size_t begin = out.size();
  const auto type_bytes = std::as_bytes(std::span(type));
  out.insert(out.end(), type_bytes.begin(), type_bytes.end());
  out.insert(out.end(), data.begin(), data.end());
  const auto* covered = reinterpret_cast<const Bytef*>(out.data() + begin);
  append_big_endian(out, static_cast<uint32_t>(::crc32(0, covered, static_cast<uInt>(out.size() - begin))));
}

// The rows, each preceded by its filter type, compressed. Filter 0 (none) suits flat areas of few colours.
std::vector<std::byte> compressed_rows(const Image& image) {
  const size_t row_bytes = static_cast<size_t>(image.width) * kPixelBytes;
  std::vector<uint8_t> raw;
  raw.reserve((row_bytes + 1) * static_cast<size_t>(image.height));
  for (auto row = image.rgb.begin(); row != image.rgb.end(); row += static_cast<std::ptrdiff_t>(row_bytes)) {
    raw.push_back(0);
    raw.insert(raw.end(), row, row + static_cast<std::ptrdiff_t>(row_bytes));
  }
  uLongf size = ::compressBound(static_cast<uLong>(raw.size()));
  std::vector<std::byte> packed(size);
  const int status = ::compress2(reinterpret_cast<Bytef*>(packed.data()), &size, raw.data(), static_cast<uLong>(raw.size()), 9);
  if (status != Z_OK) {
    throw std::runtime_error("encode_png: zlib's compress2 failed with " + std::to_string(status));
  }
  packed.resize(size);
  return packed;
}

}  // namespace

Image::Image(int image_width, int image_height, Color background) : width(image_width), height(image_height) {
  if (width < 0 || height < 0 || width > kLongestSide || height > kLongestSide) {
    throw std::invalid_argument("Image: size " + size_text(width, height) + "; wanted sides of 0 to " + std::to_string(kLongestSide));
  }
  rgb.resize(index(0, height));
  fill_rect(0, 0, width, height, background);
}

void Image::set(int x, int y, Color color) {
  if (contains(x, y)) {
    const size_t at = index(x, y);
    rgb[at] = color.r;
    rgb[at + 1] = color.g;
    rgb[at + 2] = color.b;
  }
}

Color Image::get(int x, int y) const {
  if (!contains(x, y)) {
    return kBlack;
  }
  const size_t at = index(x, y);
  return {rgb[at], rgb[at + 1], rgb[at + 2]};
}

void Image::fill_rect(int x, int y, int rect_width, int rect_height, Color color) {
  const auto right = static_cast<int>(std::min<int64_t>(width, int64_t{x} + rect_width));
  const auto bottom = static_cast<int>(std::min<int64_t>(height, int64_t{y} + rect_height));
  for (int row = std::max(y, 0); row < bottom; ++row) {
    for (int column = std::max(x, 0); column < right; ++column) {
      set(column, row, color);
    }
  }
}

void Image::draw_frame(int x, int y, int rect_width, int rect_height, Color color) {
  if (rect_width <= 0 || rect_height <= 0) {
    return;
  }
  fill_rect(x, y, rect_width, 1, color);
  fill_rect(x, y + rect_height - 1, rect_width, 1, color);
  fill_rect(x, y, 1, rect_height, color);
  fill_rect(x + rect_width - 1, y, 1, rect_height, color);
}

void Image::draw_image(int x, int y, const Image& other) {
  for (int row = 0; row < other.height; ++row) {
    for (int column = 0; column < other.width; ++column) {
      set(x + column, y + row, other.get(column, row));
    }
  }
}

std::vector<std::byte> encode_png(const Image& image) {
  if (image.width <= 0 || image.height <= 0 || image.width > kLongestSide || image.height > kLongestSide) {
    throw std::invalid_argument("encode_png: size " + size_text(image.width, image.height) + "; wanted sides of 1 to " +
                                std::to_string(kLongestSide));
  }
  const size_t wanted = static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * kPixelBytes;
  if (image.rgb.size() != wanted) {
    throw std::invalid_argument("encode_png: rgb has " + std::to_string(image.rgb.size()) + " bytes; size " +
                                size_text(image.width, image.height) + " wants " + std::to_string(wanted));
  }
  constexpr std::array<uint8_t, 8> kSignature = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  const auto signature = std::as_bytes(std::span(kSignature));
  std::vector<std::byte> out(signature.begin(), signature.end());

  std::vector<std::byte> header;
  append_big_endian(header, static_cast<uint32_t>(image.width));
  append_big_endian(header, static_cast<uint32_t>(image.height));
  // 8 bits per sample, RGB, deflate, standard filters, not interlaced.
  for (const uint8_t value : {8, 2, 0, 0, 0}) {
    header.push_back(std::byte{value});
  }
  append_chunk(out, "IHDR", header);
  const std::vector<std::byte> packed = compressed_rows(image);
  for (std::span<const std::byte> rest = packed; !rest.empty(); rest = rest.subspan(std::min(rest.size(), kDataChunk))) {
    append_chunk(out, "IDAT", rest.first(std::min(rest.size(), kDataChunk)));
  }
  append_chunk(out, "IEND", {});
  return out;
}

void write_png(const std::filesystem::path& path, const Image& image) {
  const std::vector<std::byte> encoded = encode_png(image);
  AtomicFile file(path);
  file.write(encoded);
  file.commit();
}

}  // namespace cyfa::io
