// Colours: scales for heat maps, in which lightness, which the eye ranks best, follows the value, and a palette for lines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cyfa::draw {

struct Color {
  uint8_t r = 0;
  uint8_t g = 0;
  uint8_t b = 0;

  bool operator==(const Color&) const = default;
};

inline constexpr Color kWhite = {255, 255, 255};
inline constexpr Color kInk = {34, 34, 34};       // text
inline constexpr Color kFaint = {120, 120, 120};  // secondary text
inline constexpr Color kGrid = {222, 222, 222};   // grid lines

enum class ColorScale {
  kSequential,  // dark violet at 0, through green, to light yellow at 1
  kDiverging,   // blue at 0, near white at 1/2, red at 1; for signed values
  kPaper,       // white at 0, dark blue at 1; leaves room for lines on top
};

// The colour at `position`, clamped to 0 .. 1. NaN gives a grey that occurs in no scale.
Color color_at(ColorScale scale, double position);

// Colours for lines that are told apart at a glance; they repeat after kLineColors.
inline constexpr size_t kLineColors = 8;
Color line_color(size_t index);

}  // namespace cyfa::draw
