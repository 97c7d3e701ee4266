// A matrix as a picture: panels for a PNG, or text for a terminal. The demos show with it how writes move through the slots
// of the memory (rows) while the tokens pass (columns).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cyfa/io/colormap.h"
#include "cyfa/io/png.h"

namespace cyfa::io {

struct Heatmap {
  std::string title;
  std::string row_label;
  std::string column_label;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;  // rows x columns, row-major; NaN is drawn as missing, an infinity as the end of the scale
  ColorScale scale = ColorScale::kSequential;
  // The values at the ends of the scale; without them, the least and the greatest value drawn. kDiverging always takes a
  // range symmetric about 0, so that its light middle is 0.
  std::optional<double> low;
  std::optional<double> high;
  int64_t first_row = 0;  // the numbers that the axes begin with
  int64_t first_column = 0;
};

// Limits in pixels. A matrix with more rows or columns than pixels is averaged in blocks.
struct PictureStyle {
  int plot_width = 900;
  int plot_height = 400;
  int cell = 24;       // the largest side of a cell
  int text_scale = 2;  // 1: letters of 5 x 7 pixels
};

// The panels from top to bottom in one image, their plots aligned at the left. Throws std::invalid_argument for no panels, for
// values that do not fit rows x columns, for a range that is not finite and rising, and for a style out of reason.
Image draw_heatmaps(std::span<const Heatmap> panels, const PictureStyle& style = {});

enum class TextColor { kNone, kAnsi256, kTrueColor };

struct TextStyle {
  int width = 80;   // of a line, the axis included; at least 40
  int height = 24;  // lines of cells; the title, axis and legend come on top
  TextColor color = TextColor::kNone;
  bool unicode = true;  // false: ASCII only
};

// What the terminal behind the descriptor can show: its size, and no colour where it is no terminal, NO_COLOR is set to
// something, or TERM is dumb.
TextStyle terminal_style(int fd);

// Lines ending in '\n': title, cells behind their row numbers, column numbers, labels, legend. In colour one line holds two rows
// (half blocks); otherwise the shade tells the magnitude, and letters instead of blocks a negative sign. A matrix beyond the
// limits is averaged in blocks. Control characters in the labels come out as '?'. Throws as draw_heatmaps does.
std::string heatmap_text(const Heatmap& map, const TextStyle& style = {});

}  // namespace cyfa::io
