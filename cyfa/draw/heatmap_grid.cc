#include "cyfa/draw/heatmap_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace cyfa::draw {
namespace {

constexpr int64_t kLargestIndex = 1'000'000'000'000'000;

// The mean of the block, without NaN values.
double block_mean(const Heatmap& map, int64_t row, int64_t row_end, int64_t column_begin, int64_t column_end) {
  double sum = 0;
  int64_t count = 0;
  for (; row < row_end; ++row) {
    for (int64_t column = column_begin; column < column_end; ++column) {
      const double value = map.values[static_cast<size_t>(row * map.columns + column)];
      if (!std::isnan(value)) {
        sum += value;
        ++count;
      }
    }
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

// The smallest of 1, 2, 5, 10, 20, ... that is at least `least`.
int64_t nice_step(double least) {
  int64_t decade = 1;
  while (decade < std::numeric_limits<int64_t>::max() / 100) {
    for (const int64_t factor : {1, 2, 5}) {
      if (static_cast<double>(decade * factor) >= least) {
        return decade * factor;
      }
    }
    decade *= 10;
  }
  return decade;
}

}  // namespace

void check_heatmap(const Heatmap& map) {
  const auto fail = [&](const std::string& message) { throw std::invalid_argument("heatmap \"" + map.title + "\": " + message); };
  const std::string shape = std::to_string(map.rows) + " x " + std::to_string(map.columns);
  if (std::min(map.rows, map.columns) < 0 || std::max(map.rows, map.columns) > kLargestIndex ||
      (map.columns > 0 && map.rows > kLargestIndex / map.columns)) {
    fail("shape " + shape + " is negative or beyond 10^15 cells");
  }
  if (map.values.size() != static_cast<uint64_t>(map.rows) * static_cast<uint64_t>(map.columns)) {
    fail(std::to_string(map.values.size()) + " values came; shape " + shape + " wants as many as it has cells");
  }
  if ((!map.row_names.empty() && map.row_names.size() != static_cast<uint64_t>(map.rows)) ||
      (!map.column_names.empty() && map.column_names.size() != static_cast<uint64_t>(map.columns))) {
    fail(std::to_string(map.row_names.size()) + " row names and " + std::to_string(map.column_names.size()) +
         " column names came; wanted one for each of " + shape + ", or none");
  }
  if (std::max(std::abs(map.first_row), std::abs(map.first_column)) > kLargestIndex) {
    fail("first_row " + std::to_string(map.first_row) + " or first_column " + std::to_string(map.first_column) + " is beyond 10^15");
  }
  if ((map.low && !std::isfinite(*map.low)) || (map.high && !std::isfinite(*map.high)) || (map.low && map.high && *map.low >= *map.high)) {
    fail("the range from " + (map.low ? std::to_string(*map.low) : "auto") + " to " + (map.high ? std::to_string(*map.high) : "auto") +
         " is not finite and rising");
  }
}

// Computed with halves because high - low may overflow.
double Range::position(double value) const {
  if (std::isnan(value)) {
    return value;
  }
  const double clamped = std::clamp(value, low, high);
  return high > low ? (clamped / 2 - low / 2) / (high / 2 - low / 2) : 0.0;
}

Blocks::Blocks(int64_t extent_indices, int most) : extent(extent_indices), size(std::max<int64_t>(1, (extent - 1) / most + 1)) {}

int64_t Blocks::begin(int cell) const { return std::min(extent, cell * size); }

Grid averaged(const Heatmap& map, int most_rows, int most_columns) {
  const Blocks rows(map.rows, most_rows);
  const Blocks columns(map.columns, most_columns);
  Grid grid = {rows, columns, rows.count(), columns.count(), {}};
  grid.values.reserve(static_cast<size_t>(grid.rows) * static_cast<size_t>(grid.columns));
  for (int row = 0; row < grid.rows; ++row) {
    for (int column = 0; column < grid.columns; ++column) {
      grid.values.push_back(block_mean(map, rows.begin(row), rows.begin(row + 1), columns.begin(column), columns.begin(column + 1)));
    }
  }
  return grid;
}

std::string averaging_note(const Grid& grid) {
  if (grid.row_blocks.size == 1 && grid.column_blocks.size == 1) {
    return "";
  }
  return " (cells average " + std::to_string(grid.row_blocks.size) + " x " + std::to_string(grid.column_blocks.size) + ")";
}

Range range_of(const Heatmap& map, const Grid& grid) {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -least;
  for (const double value : grid.values) {
    if (std::isfinite(value)) {
      least = std::min(least, value);
      greatest = std::max(greatest, value);
    }
  }
  if (least > greatest) {
    least = 0;
    greatest = 1;
  }
  if (map.scale == ColorScale::kDiverging) {
    const bool given = map.low || map.high;
    const double limit =
        given ? std::max(std::abs(map.low.value_or(0)), std::abs(map.high.value_or(0))) : std::max(std::abs(least), std::abs(greatest));
    return limit > 0 ? Range{-limit, limit} : Range{-1, 1};
  }
  const double low = map.low.value_or(map.high ? std::min(least, *map.high) : least);
  return {low, std::max(low, map.high.value_or(greatest))};
}

std::vector<IndexTick> index_ticks(int64_t first, int64_t extent, double step_indices) {
  std::vector<IndexTick> ticks;
  const int64_t step = nice_step(step_indices);
  const int64_t remainder = ((first % step) + step) % step;
  for (int64_t index = remainder == 0 ? 0 : step - remainder; index < extent; index += step) {
    ticks.push_back({index, std::to_string(first + index)});
  }
  return ticks;
}

int widest_number(int64_t first, int64_t extent) {
  return static_cast<int>(std::max(std::to_string(first).size(), std::to_string(first + std::max<int64_t>(extent - 1, 0)).size()));
}

}  // namespace cyfa::draw
