// A built-in bitmap font of 5 x 7 pixels for labels: printable ASCII.
#pragma once

#include <string_view>

#include "cyfa/io/png.h"

namespace cyfa::io {

inline constexpr int kGlyphWidth = 5;
inline constexpr int kGlyphHeight = 7;

// Width in pixels of one line; its height is kGlyphHeight * scale. A code point of UTF-8 that the font lacks is a box.
int text_width(std::string_view text, int scale = 1);

// (x, y) is the top left corner of the text.
void draw_text(Image& image, int x, int y, std::string_view text, Color color, int scale = 1);
// Turned to run upwards; (x, y) is the bottom left corner, where the text begins.
void draw_text_upward(Image& image, int x, int y, std::string_view text, Color color, int scale = 1);

}  // namespace cyfa::io
