// An image of 8-bit RGB pixels, and a PNG writer. Used by heatmap.cc and the program's pictures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace cyfa::io {

struct Color {
  uint8_t r = 0;
  uint8_t g = 0;
  uint8_t b = 0;

  bool operator==(const Color&) const = default;
};

inline constexpr Color kBlack = {0, 0, 0};
inline constexpr Color kWhite = {255, 255, 255};

// x runs to the right and y down from the top left corner. Drawing outside of the image is clipped.
struct Image {
  // Throws std::invalid_argument unless both sides are within 0 .. 32768.
  Image(int image_width, int image_height, Color background = kWhite);

  void set(int x, int y, Color color);
  // Black outside of the image.
  Color get(int x, int y) const;
  void fill_rect(int x, int y, int rect_width, int rect_height, Color color);
  // A frame of one pixel along the inner edge of the rectangle.
  void draw_frame(int x, int y, int rect_width, int rect_height, Color color);
  // Copies `other` with its top left corner at (x, y).
  void draw_image(int x, int y, const Image& other);

  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb;  // rows from the top, 3 bytes per pixel

 private:
  bool contains(int x, int y) const { return x >= 0 && y >= 0 && x < width && y < height; }
  size_t index(int x, int y) const { return (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)) * 3; }
};

// The PNG file of the image. Throws std::invalid_argument if the image has no pixels, which PNG does not allow, or if rgb does not match
// its size.
std::vector<std::byte> encode_png(const Image& image);
// Replaces `path` atomically; throws FileError and leaves it unchanged on failure.
void write_png(const std::filesystem::path& path, const Image& image);

}  // namespace cyfa::io
