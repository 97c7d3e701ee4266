// A heat map as text for a terminal.
#pragma once

#include "cyfa/draw/heatmap.h"

namespace cyfa::draw {

// Colours that a terminal supports.
enum class TextColor { kNone, kAnsi256, kTrueColor };

// Limits and abilities of a terminal.
struct TextStyle {
  int width = 80;   // of a line, including the axis; at least 40
  int height = 24;  // lines of cells, not counting title, axis and legend
  TextColor color = TextColor::kNone;
  bool unicode = true;  // false: ASCII only
};

// The style for the terminal at this descriptor: its size, and its colours. No colour if the descriptor is not a terminal, if NO_COLOR is
// set to a non-empty value, or if TERM is "dumb".
TextStyle terminal_style(int fd);

// The heat map as lines of text: title, cells with row numbers, column numbers, labels, legend. With colour and Unicode a line holds two
// rows (half blocks). Without colour the shade shows the magnitude, and letters instead of blocks show a negative sign. A matrix beyond the
// limits is averaged in blocks. Control characters in labels are replaced by '?'. Throws std::invalid_argument if the number of values is
// not rows x columns, if a range is not finite and increasing, or if the style is out of bounds.
std::string heatmap_text(const Heatmap& map, const TextStyle& style = {});

}  // namespace cyfa::draw
