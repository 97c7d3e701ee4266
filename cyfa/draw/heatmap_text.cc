// The text renderer of heatmap_text.h, and the properties of the terminal.
#include "cyfa/draw/heatmap_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "cyfa/draw/axis.h"
#include "cyfa/draw/heatmap_grid.h"

namespace cyfa::draw {
namespace {

constexpr int kLeastTextWidth = 40;
constexpr int kMostTextCells = 10000;

void check_limit(const char* name, int value, int least, int most) {
  if (value < least || value > most) {
    throw std::invalid_argument(std::string("heatmap style: ") + name + " is " + std::to_string(value) + "; wanted " +
                                std::to_string(least) + " to " + std::to_string(most));
  }
}

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
    for (const IndexTick& mark : index_ticks(map_.first_column, map_.columns, static_cast<double>(map_.columns) * spacing / characters)) {
      const size_t at = origin + static_cast<size_t>(mark.index / grid_.column_blocks.size * cell_width_);
      if (at + mark.text.size() <= static_cast<size_t>(style_.width)) {
        line.resize(std::max(line.size(), at), ' ');
        line += mark.text;
      }
    }
    out_ += line + '\n';
  }

  void append_legend() {
    out_ += number_text(range_.low) + " [";
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
    out_ += "] " + number_text(range_.high) + '\n';
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
  check_heatmap(map);
  return TextRenderer(map, style).render();
}

}  // namespace cyfa::draw
