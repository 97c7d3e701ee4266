// A matrix to be drawn: as a panel of a picture (figure.h) or as text (heatmap_text.h). Used by `cyfa show clock` and `cyfa demo recall` to
// show how writes move through the slots of the memory (rows) over the tokens (columns).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cyfa/draw/color.h"
#include "cyfa/draw/line.h"

namespace cyfa::draw {

// The name of a row or of a column, in place of its number.
struct CellName {
  std::string text;
  Color color = kInk;
};

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

  // In pictures only.
  std::vector<CellName> row_names;     // one for each row; empty: numbers
  std::vector<CellName> column_names;  // likewise
  std::vector<Line> lines;             // drawn over the cells; x is a column and y a row, whole at the middle of a cell
  double plot_height = 0;              // in points; 0: as the number of rows suggests
};

}  // namespace cyfa::draw
