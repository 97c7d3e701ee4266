// A matrix as a heat map: panels of a PNG, or text for a terminal. Used by `cyfa show clock` and `cyfa demo recall` to show how writes move
// through the slots of the memory (rows) over the tokens (columns).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cyfa/io/colormap.h"
#include "cyfa/io/png.h"

namespace cyfa::io {

// One matrix with its labels and colour range.
struct Heatmap {
  std::string title;
  std::string row_label;
  std::string column_label;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;  // rows x columns, row-major; NaN is drawn as missing, an infinity as the end of the scale
  ColorScale scale = ColorScale::kSequential;
  // Values at the ends of the scale; by default the smallest and the largest value drawn. kDiverging always uses a range symmetric about 0,
  // so that its light middle is 0.
  std::optional<double> low;
  std::optional<double> high;
  int64_t first_row = 0;     // index of the first row on the axis
  int64_t first_column = 0;  // index of the first column on the axis
};

// Limits of a picture in pixels. A matrix with more rows or columns than pixels is averaged in blocks.
struct PictureStyle {
  int plot_width = 900;
  int plot_height = 400;
  int cell = 24;       // largest side of a cell
  int text_scale = 2;  // 1: glyphs of 5 x 7 pixels
};

// The panels from top to bottom in one image, with their plots aligned at the left. Throws std::invalid_argument if there are no panels, if
// the number of values is not rows x columns, if a range is not finite and increasing, or if the style is out of bounds.
Image draw_heatmaps(std::span<const Heatmap> panels, const PictureStyle& style = {});

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
// limits is averaged in blocks. Control characters in labels are replaced by '?'. Throws as draw_heatmaps does.
std::string heatmap_text(const Heatmap& map, const TextStyle& style = {});

}  // namespace cyfa::io
