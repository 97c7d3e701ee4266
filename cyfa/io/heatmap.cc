// See heatmap.h: averaging and ranges, pictures (Panel), text (TextRenderer), properties of the terminal.
#include "cyfa/io/heatmap.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "cyfa/io/font.h"

namespace cyfa::io {
namespace {

constexpr Color kInk = {40, 40, 40};
constexpr Color kFrame = {150, 150, 150};
// In lines of text: a smaller plot would have no room for the numbers of its colour bar.
constexpr int kLeastPlotLines = 4;
constexpr int64_t kLargestIndex = 1'000'000'000'000'000;
constexpr int kLeastTextWidth = 40;
constexpr int kMostTextCells = 10000;

// The value range of a colour scale.
struct Range {
  double low = 0;
  double high = 1;

  // Position of a value on the scale, 0 .. 1. Computed with halves because high - low may overflow.
  double position(double value) const {
    if (std::isnan(value)) {
      return value;
    }
    const double clamped = std::clamp(value, low, high);
    return high > low ? (clamped / 2 - low / 2) / (high / 2 - low / 2) : 0.0;
  }
};

void check(const Heatmap& map) {
  const auto fail = [&](const std::string& message) { throw std::invalid_argument("heatmap \"" + map.title + "\": " + message); };
  const std::string shape = std::to_string(map.rows) + " x " + std::to_string(map.columns);
  if (std::min(map.rows, map.columns) < 0 || std::max(map.rows, map.columns) > kLargestIndex ||
      (map.columns > 0 && map.rows > kLargestIndex / map.columns)) {
    fail("shape " + shape + " is negative or beyond 10^15 cells");
  }
  if (map.values.size() != static_cast<uint64_t>(map.rows) * static_cast<uint64_t>(map.columns)) {
    fail(std::to_string(map.values.size()) + " values came; shape " + shape + " wants as many as it has cells");
  }
  if (std::max(std::abs(map.first_row), std::abs(map.first_column)) > kLargestIndex) {
    fail("first_row " + std::to_string(map.first_row) + " or first_column " + std::to_string(map.first_column) + " is beyond 10^15");
  }
  if ((map.low && !std::isfinite(*map.low)) || (map.high && !std::isfinite(*map.high)) || (map.low && map.high && *map.low >= *map.high)) {
    fail("the range from " + (map.low ? std::to_string(*map.low) : "auto") + " to " + (map.high ? std::to_string(*map.high) : "auto") +
         " is not finite and rising");
  }
}

void check_limit(const char* name, int value, int least, int most) {
  if (value < least || value > most) {
    throw std::invalid_argument(std::string("heatmap style: ") + name + " is " + std::to_string(value) + "; wanted " +
                                std::to_string(least) + " to " + std::to_string(most));
  }
}

// An axis divided into blocks of equal size (the last may be smaller), one per cell: the smallest size that gives at most `most` cells.
struct Blocks {
  Blocks(int64_t extent_indices, int most) : extent(extent_indices), size(std::max<int64_t>(1, (extent - 1) / most + 1)) {}

  int count() const { return extent == 0 ? 0 : static_cast<int>((extent - 1) / size + 1); }
  int64_t begin(int cell) const { return std::min(extent, cell * size); }
  // The middle of an index as a fraction of the drawn axis, on which all cells have the same size.
  double middle_of(int64_t index) const { return (static_cast<double>(index) + 0.5) / (static_cast<double>(size) * count()); }

  int64_t extent;
  int64_t size;
};

// The matrix as drawn, averaged to the available number of cells.
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

std::string number(double value) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.3g", value == 0 ? 0.0 : value);
  return text.data();
}

std::string averaging_note(const Grid& grid) {
  if (grid.row_blocks.size == 1 && grid.column_blocks.size == 1) {
    return "";
  }
  return " (cells average " + std::to_string(grid.row_blocks.size) + " x " + std::to_string(grid.column_blocks.size) + ")";
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

struct Tick {
  int64_t index = 0;
  std::string text;
};

// Ticks at round numbers for an axis of `extent` indices that starts at `first`, at least `step_indices` apart.
std::vector<Tick> axis_ticks(int64_t first, int64_t extent, double step_indices) {
  std::vector<Tick> ticks;
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

// The longest prefix of the text, in whole code points, that is at most `limit` pixels wide.
std::string fit(const std::string& text, int limit, int scale) {
  std::string result = text;
  while (!result.empty() && text_width(result, scale) > limit) {
    while (!result.empty() && (static_cast<unsigned char>(result.back()) & 0xc0) == 0x80) {
      result.pop_back();
    }
    if (!result.empty()) {
      result.pop_back();
    }
  }
  return result;
}

// One panel of a picture. Coordinates are pixels relative to the panel's top left corner.
class Panel {
 public:
  Panel(const Heatmap& map, const PictureStyle& style)
      : map_(map),
        style_(style),
        grid_(averaged(map, style.plot_height, style.plot_width)),
        range_(range_of(map, grid_)),
        title_(map.title + averaging_note(grid_)),
        plot_width_(plot_extent(grid_.columns, style.plot_width)),
        plot_height_(plot_extent(grid_.rows, style.plot_height)) {}

  int row_numbers_width() const { return widest_number(map_.first_row, map_.rows) * glyph(); }

  // Left edge of the plot, if the row numbers of all panels need `numbers_width` pixels.
  int left(int numbers_width) const { return pad() + line() + pad() + numbers_width + tick(); }
  int top() const { return pad() + line() + pad(); }
  int width(int numbers_width) const {
    const int titled = 2 * pad() + std::min(text_width(title_, scale()), style_.plot_width);
    return std::max(titled, bar_left(numbers_width) + bar_width() + scale() * 2 + bar_numbers_width() + pad());
  }
  int height() const { return top() + plot_height_ + tick() + scale() * 2 + line() + pad() + line() + pad(); }

  void draw(Image& image, int y, int numbers_width) const {
    const int x = left(numbers_width);
    draw_text(image, pad(), y + pad(), fit(title_, image.width - 2 * pad(), scale()), kInk, scale());
    draw_cells(image, x, y + top());
    draw_row_axis(image, x, y + top(), numbers_width);
    draw_column_axis(image, x, y + top() + plot_height_);
    draw_bar(image, bar_left(numbers_width), y + top());
  }

 private:
  int scale() const { return style_.text_scale; }
  int glyph() const { return (kGlyphWidth + 1) * scale(); }
  int line() const { return kGlyphHeight * scale(); }
  int pad() const { return 4 * scale(); }
  int tick() const { return 3 * scale(); }
  int bar_width() const { return 6 * scale(); }
  int bar_left(int numbers_width) const { return left(numbers_width) + plot_width_ + 2 * pad(); }
  int bar_numbers_width() const {
    const auto width_of = [&](double value) { return text_width(number(value), scale()); };
    return std::max({width_of(range_.low), width_of(middle()), width_of(range_.high)});
  }
  double middle() const { return range_.low / 2 + range_.high / 2; }

  int plot_extent(int cells, int most) const {
    const int least = kLeastPlotLines * line();
    const int cell = cells == 0 ? least : std::clamp(most / cells, 1, style_.cell);
    return std::max(cells * cell, least);
  }

  // Cells divide the plot evenly; boundaries are rounded down to whole pixels.
  static int cell_begin(int cell, int cells, int extent) { return static_cast<int>(int64_t{cell} * extent / cells); }

  void draw_cells(Image& image, int x, int y) const {
    image.draw_frame(x - 1, y - 1, plot_width_ + 2, plot_height_ + 2, kFrame);
    if (grid_.values.empty()) {
      draw_text(image, x + pad(), y + (plot_height_ - line()) / 2, fit("empty", plot_width_ - pad(), scale()), kInk, scale());
      return;
    }
    for (int row = 0; row < grid_.rows; ++row) {
      const int cell_top = cell_begin(row, grid_.rows, plot_height_);
      const int cell_bottom = cell_begin(row + 1, grid_.rows, plot_height_);
      for (int column = 0; column < grid_.columns; ++column) {
        const int cell_left = cell_begin(column, grid_.columns, plot_width_);
        const int cell_right = cell_begin(column + 1, grid_.columns, plot_width_);
        image.fill_rect(x + cell_left, y + cell_top, cell_right - cell_left, cell_bottom - cell_top,
                        color_at(map_.scale, range_.position(grid_.at(row, column))));
      }
    }
  }

  void draw_row_axis(Image& image, int x, int y, int numbers_width) const {
    const double step = static_cast<double>(map_.rows) * line() * 2 / plot_height_;
    for (const Tick& mark : axis_ticks(map_.first_row, map_.rows, step)) {
      const int at = y + static_cast<int>(grid_.row_blocks.middle_of(mark.index) * plot_height_);
      image.fill_rect(x - 1 - tick(), at, tick(), 1, kFrame);
      draw_text(image, x - tick() - scale() * 2 - text_width(mark.text, scale()), at - line() / 2, mark.text, kInk, scale());
    }
    const std::string label = fit(map_.row_label, plot_height_ + 2 * pad(), scale());
    const int label_left = x - left(numbers_width) + pad();
    draw_text_upward(image, label_left, y + (plot_height_ + text_width(label, scale())) / 2, label, kInk, scale());
  }

  void draw_column_axis(Image& image, int x, int y) const {
    const int spacing = (widest_number(map_.first_column, map_.columns) + 3) * glyph();
    const double step = static_cast<double>(map_.columns) * spacing / plot_width_;
    for (const Tick& mark : axis_ticks(map_.first_column, map_.columns, step)) {
      const int at = x + static_cast<int>(grid_.column_blocks.middle_of(mark.index) * plot_width_);
      image.fill_rect(at, y + 1, 1, tick(), kFrame);
      draw_text(image, at - text_width(mark.text, scale()) / 2, y + tick() + scale() * 2, mark.text, kInk, scale());
    }
    const std::string label = fit(map_.column_label, plot_width_, scale());
    const int label_top = y + tick() + scale() * 2 + line() + pad();
    draw_text(image, x + (plot_width_ - text_width(label, scale())) / 2, label_top, label, kInk, scale());
  }

  void draw_bar(Image& image, int x, int y) const {
    for (int row = 0; row < plot_height_; ++row) {
      const double position = 1 - static_cast<double>(row) / std::max(plot_height_ - 1, 1);
      image.fill_rect(x, y + row, bar_width(), 1, color_at(map_.scale, position));
    }
    image.draw_frame(x - 1, y - 1, bar_width() + 2, plot_height_ + 2, kFrame);
    const int numbers = x + bar_width() + scale() * 2;
    draw_text(image, numbers, y, number(range_.high), kInk, scale());
    draw_text(image, numbers, y + (plot_height_ - line()) / 2, number(middle()), kInk, scale());
    draw_text(image, numbers, y + plot_height_ - line(), number(range_.low), kInk, scale());
  }

  const Heatmap& map_;
  const PictureStyle& style_;
  Grid grid_;
  Range range_;
  std::string title_;
  int plot_width_;
  int plot_height_;
};

// The nearest of the 6 x 6 x 6 colours and 24 greys of a 256-colour terminal.
int ansi256(Color color) {
  constexpr std::array<int, 6> kLevels = {0, 95, 135, 175, 215, 255};
  const auto nearest_level = [&](int value) {
    int best = 0;
    for (int i = 1; i < 6; ++i) {
      if (std::abs(kLevels[static_cast<size_t>(i)] - value) < std::abs(kLevels[static_cast<size_t>(best)] - value)) {
        best = i;
      }
    }
    return best;
  };
  const auto distance = [&](int r, int g, int b) {
    const auto square = [](int x) { return x * x; };
    return square(r - color.r) + square(g - color.g) + square(b - color.b);
  };
  const std::array<int, 3> cube = {nearest_level(color.r), nearest_level(color.g), nearest_level(color.b)};
  const auto level = [&](size_t i) { return kLevels[static_cast<size_t>(cube[i])]; };
  const int grey = std::clamp(((color.r + color.g + color.b) / 3 - 3) / 10, 0, 23);
  const int grey_level = 8 + 10 * grey;
  if (distance(grey_level, grey_level, grey_level) < distance(level(0), level(1), level(2))) {
    return 232 + grey;
  }
  return 16 + 36 * cube[0] + 6 * cube[1] + cube[2];
}

// Writes coloured cells, with an escape sequence only where a colour changes.
class ColoredLine {
 public:
  ColoredLine(std::string& out, TextColor mode) : out_(out), mode_(mode) {}

  void put(std::string_view text, std::optional<Color> foreground, std::optional<Color> background) {
    if ((foreground_ && !foreground) || (background_ && !background)) {
      reset();
    }
    change(foreground_, foreground, "38");
    change(background_, background, "48");
    out_ += text;
  }
  void reset() {
    if (foreground_ || background_) {
      out_ += "\x1b[0m";
    }
    foreground_.reset();
    background_.reset();
  }

 private:
  void change(std::optional<Color>& current, std::optional<Color> wanted, const char* code) {
    if (current == wanted) {
      return;
    }
    current = wanted;
    out_ += std::string("\x1b[") + code;
    if (mode_ == TextColor::kTrueColor) {
      out_ += ";2;" + std::to_string(wanted->r) + ";" + std::to_string(wanted->g) + ";" + std::to_string(wanted->b) + "m";
    } else {
      out_ += ";5;" + std::to_string(ansi256(*wanted)) + "m";
    }
  }

  std::string& out_;
  TextColor mode_;
  std::optional<Color> foreground_;
  std::optional<Color> background_;
};

// Characters for five magnitudes.
using Ramp = std::array<std::string_view, 5>;
constexpr Ramp kBlocks = {" ", "░", "▒", "▓", "█"};
constexpr Ramp kBlocksNegative = {" ", ".", "o", "O", "@"};
constexpr Ramp kAscii = {" ", ".", "+", "*", "#"};
constexpr Ramp kAsciiNegative = {" ", ",", "-", "=", "%"};

class TextRenderer {
 public:
  TextRenderer(const Heatmap& map, const TextStyle& style)
      : map_(map),
        style_(style),
        rows_per_line_(style.color != TextColor::kNone && style.unicode ? 2 : 1),
        numbers_width_(widest_number(map.first_row, map.rows)),
        grid_(averaged(map, style.height * rows_per_line_, std::max(style.width - numbers_width_ - 2, 1))),
        range_(range_of(map, grid_)) {
    // Without half blocks a character cell is twice as high as wide: use two characters per cell if there is room.
    const int room = style.width - numbers_width_ - 2;
    cell_width_ = rows_per_line_ == 1 && grid_.columns * 2 <= room ? 2 : 1;
  }

  std::string render() {
    append_words(map_.title + averaging_note(grid_));
    if (grid_.values.empty()) {
      append_words("(empty: " + std::to_string(map_.rows) + " x " + std::to_string(map_.columns) + ")");
      return out_;
    }
    for (int row = 0; row < grid_.rows; row += rows_per_line_) {
      append_cells(row);
    }
    append_column_numbers();
    std::string labels = map_.row_label.empty() ? "" : "rows: " + map_.row_label;
    if (!map_.column_label.empty()) {
      labels += (labels.empty() ? "columns: " : ", columns: ") + map_.column_label;
    }
    append_words(labels);
    append_legend();
    return out_;
  }

 private:
  double position(int row, int column) const { return range_.position(grid_.at(row, column)); }
  Color color(double at) const { return color_at(map_.scale, at); }

  std::string_view shade(double at) const {
    if (std::isnan(at)) {
      return "?";
    }
    const bool diverging = map_.scale == ColorScale::kDiverging;
    const bool negative = diverging && at < 0.5;
    const auto level = static_cast<size_t>(std::lround(4 * (diverging ? std::abs(2 * at - 1) : at)));
    const Ramp& ramp = style_.unicode ? (negative ? kBlocksNegative : kBlocks) : (negative ? kAsciiNegative : kAscii);
    return ramp[std::min<size_t>(level, 4)];
  }

  // Appends one line of text, cut at the width; nothing if the text is empty.
  void append_words(const std::string& text) {
    int width = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      const bool continues = (byte & 0xc0) == 0x80;
      if (!continues && ++width > style_.width) {
        break;
      }
      // C2 80 .. C2 9F encode U+0080 .. U+009F, which are control characters too.
      const bool upper_control = byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
      if (byte < 0x20 || byte == 0x7f || upper_control || (byte >= 0x80 && !continues && !style_.unicode)) {
        out_ += '?';
        i += upper_control ? 1 : 0;
      } else if (!continues || style_.unicode) {
        out_ += text[i];
      }
    }
    if (!text.empty()) {
      out_ += '\n';
    }
  }

  void append_cells(int row) {
    // Only every fourth line has a number.
    const bool numbered = row / rows_per_line_ % 4 == 0;
    const std::string text = numbered ? std::to_string(map_.first_row + grid_.row_blocks.begin(row)) : "";
    out_.append(static_cast<size_t>(numbers_width_) - text.size(), ' ');
    out_ += text;
    out_ += numbered ? (style_.unicode ? " ┤" : " |") : (style_.unicode ? " │" : " |");
    ColoredLine line(out_, style_.color);
    for (int column = 0; column < grid_.columns; ++column) {
      const double upper = position(row, column);
      if (style_.color == TextColor::kNone) {
        for (int i = 0; i < cell_width_; ++i) {
          out_ += shade(upper);
        }
      } else if (rows_per_line_ == 1) {
        line.put(cell_width_ == 2 ? "  " : " ", std::nullopt, color(upper));
      } else {
        const bool paired = row + 1 < grid_.rows;
        line.put("▀", color(upper), paired ? std::optional(color(position(row + 1, column))) : std::nullopt);
      }
    }
    line.reset();
    out_ += '\n';
  }

  // The first digit of a number is below the cell that contains its index.
  void append_column_numbers() {
    const auto spacing = static_cast<double>(widest_number(map_.first_column, map_.columns) + 3);
    const double characters = static_cast<double>(grid_.columns) * cell_width_;
    std::string line(static_cast<size_t>(numbers_width_) + 2, ' ');
    const size_t origin = line.size();
    for (const Tick& mark : axis_ticks(map_.first_column, map_.columns, static_cast<double>(map_.columns) * spacing / characters)) {
      const size_t at = origin + static_cast<size_t>(mark.index / grid_.column_blocks.size * cell_width_);
      if (at + mark.text.size() <= static_cast<size_t>(style_.width)) {
        line.resize(std::max(line.size(), at), ' ');
        line += mark.text;
      }
    }
    out_ += line + '\n';
  }

  void append_legend() {
    out_ += number(range_.low) + " [";
    ColoredLine line(out_, style_.color);
    const int steps = style_.color == TextColor::kNone ? (map_.scale == ColorScale::kDiverging ? 9 : 5) : 16;
    for (int i = 0; i < steps; ++i) {
      const double at = static_cast<double>(i) / (steps - 1);
      if (style_.color == TextColor::kNone) {
        out_ += shade(at);
      } else {
        line.put(" ", std::nullopt, color(at));
      }
    }
    line.reset();
    out_ += "] " + number(range_.high) + '\n';
  }

  const Heatmap& map_;
  const TextStyle& style_;
  int rows_per_line_;
  int numbers_width_;
  Grid grid_;
  Range range_;
  int cell_width_ = 1;
  std::string out_;
};

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

TextColor terminal_color(int fd) {
  if (::isatty(fd) == 0 || !environment("NO_COLOR").empty() || environment("TERM") == "dumb") {
    return TextColor::kNone;
  }
  const std::string_view kind = environment("COLORTERM");
  return kind == "truecolor" || kind == "24bit" ? TextColor::kTrueColor : TextColor::kAnsi256;
}

// UTF-8 is assumed unless the locale names another encoding.
bool terminal_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view value = environment(name);
    if (!value.empty()) {
      for (const std::string_view encoding : {"UTF-8", "utf-8", "UTF8", "utf8"}) {
        if (value.find(encoding) != std::string_view::npos) {
          return true;
        }
      }
      return false;
    }
  }
  return true;
}

}  // namespace

Image draw_heatmaps(std::span<const Heatmap> panels, const PictureStyle& style) {
  constexpr int kMostPixels = 16384;
  check_limit("plot_width", style.plot_width, 1, kMostPixels);
  check_limit("plot_height", style.plot_height, 1, kMostPixels);
  check_limit("cell", style.cell, 1, kMostPixels);
  check_limit("text_scale", style.text_scale, 1, 16);
  if (panels.empty()) {
    throw std::invalid_argument("draw_heatmaps: no panels; wanted at least one");
  }
  std::vector<Panel> drawn;
  drawn.reserve(panels.size());
  int numbers_width = 0;
  for (const Heatmap& map : panels) {
    check(map);
    drawn.emplace_back(map, style);
    numbers_width = std::max(numbers_width, drawn.back().row_numbers_width());
  }
  int width = 0;
  int64_t height = 0;
  for (const Panel& panel : drawn) {
    width = std::max(width, panel.width(numbers_width));
    height += panel.height();
  }
  Image image(width, static_cast<int>(std::min<int64_t>(height, std::numeric_limits<int>::max())));
  int y = 0;
  for (const Panel& panel : drawn) {
    panel.draw(image, y, numbers_width);
    y += panel.height();
  }
  return image;
}

TextStyle terminal_style(int fd) {
  TextStyle style;
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.width = std::clamp<int>(size.ws_col, kLeastTextWidth, kMostTextCells);
  }
  if (size.ws_row > 0) {
    // Leaves room for the title, the axis, the labels, the legend and the next prompt.
    style.height = std::clamp<int>(size.ws_row - 5, 4, kMostTextCells);
  }
  style.color = terminal_color(fd);
  style.unicode = terminal_unicode();
  return style;
}

std::string heatmap_text(const Heatmap& map, const TextStyle& style) {
  check_limit("width", style.width, kLeastTextWidth, kMostTextCells);
  check_limit("height", style.height, 1, kMostTextCells);
  check(map);
  return TextRenderer(map, style).render();
}

}  // namespace cyfa::io
