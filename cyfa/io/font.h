// A built-in bitmap font of 5 x 7 pixels with printable ASCII, for the labels of heatmap.cc.
#pragma once

#include <string_view>

#include "cyfa/io/png.h"

namespace cyfa::io {

inline constexpr int kGlyphWidth = 5;
inline constexpr int kGlyphHeight = 7;

// Width in pixels of one line of text; its height is kGlyphHeight * scale. A UTF-8 code point that the font lacks is drawn as a box.
int text_width(std::string_view text, int scale = 1);

// Draws text on the image; (x, y) is its top left corner.
void draw_text(Image& image, int x, int y, std::string_view text, Color color, int scale = 1);
// Draws text rotated to run upwards; (x, y) is its bottom left corner, where the text begins.
void draw_text_upward(Image& image, int x, int y, std::string_view text, Color color, int scale = 1);

}  // namespace cyfa::io
