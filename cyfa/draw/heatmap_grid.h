// What the picture and the text of a heat map share: checks, averaging to the cells that there is room for, the value range, whole ticks.
#pragma once

#include "cyfa/draw/heatmap.h"

namespace cyfa::draw {

// Throws std::invalid_argument if the map's parts do not fit together.
void check_heatmap(const Heatmap& map);

// The value range of a colour scale.
struct Range {
  double low = 0;
  double high = 1;

  // Position of a value on the scale, 0 .. 1; NaN for NaN.
  double position(double value) const;
};

// An axis divided into blocks of equal size (the last may be smaller), one per cell: the smallest size that gives at most `most` cells.
struct Blocks {
  Blocks(int64_t extent_indices, int most);

  int count() const { return extent == 0 ? 0 : static_cast<int>((extent - 1) / size + 1); }
  int64_t begin(int cell) const;
  // The middle of an index as a fraction of the drawn axis, on which all cells have the same size.
  double middle_of(double index) const { return (index + 0.5) / (static_cast<double>(size) * count()); }

  int64_t extent;
  int64_t size;
};

// The matrix as drawn.
struct Grid {
  Blocks row_blocks;
  Blocks column_blocks;
  int rows;
  int columns;
  std::vector<double> values;

  double at(int row, int column) const {
    return values[static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column)];
  }
};

// Averages the matrix to at most this number of cells; a mean leaves out NaN values.
Grid averaged(const Heatmap& map, int most_rows, int most_columns);
// " (cells average 2 x 3)", or nothing if they do not.
std::string averaging_note(const Grid& grid);
Range range_of(const Heatmap& map, const Grid& grid);

// A tick at an index of an axis.
struct IndexTick {
  int64_t index = 0;
  std::string text;
};

// Ticks at round numbers for an axis of `extent` indices that starts at `first`, at least `step_indices` apart.
std::vector<IndexTick> index_ticks(int64_t first, int64_t extent, double step_indices);
// Characters of the longest number on such an axis.
int widest_number(int64_t first, int64_t extent);

}  // namespace cyfa::draw
