// Heat maps as panels.
#include <algorithm>
#include <cmath>

#include "cyfa/draw/axis.h"
#include "cyfa/draw/heatmap_grid.h"
#include "cyfa/draw/panel.h"

namespace cyfa::draw {
namespace {

constexpr double kCell = 18;  // height of a row where there is room
constexpr double kLeastHeight = 34;
constexpr double kMostHeight = 330;
constexpr double kBarWidth = 12;
constexpr double kNameGap = 2;  // between names of columns
constexpr Font kName = {.size = 9.5};

class HeatmapPanel final : public PanelDrawing {
 public:
  HeatmapPanel(const Heatmap& map, double width)
      : map_(map),
        legend_(map.lines),
        height_(map.plot_height > 0 ? map.plot_height : std::clamp(static_cast<double>(map.rows) * kCell, kLeastHeight, kMostHeight)),
        grid_(averaged(map, static_cast<int>(height_ * kPixelsPerPoint), static_cast<int>(width * kPixelsPerPoint))),
        range_(range_of(map, grid_)),
        title_(map.title + averaging_note(grid_)) {
    for (const CellName& name : row_marks()) numbers_ = std::max(numbers_, text_width(name.text, kNumber));
    for (const double value : bar_values()) bar_numbers_ = std::max(bar_numbers_, text_width(number_text(value), kNumber));
  }

  double left() const override { return (map_.row_label.empty() ? 0 : kUpward) + numbers_ + kGap; }
  double right() const override { return 2 * kGap + kBarWidth + 4 + bar_numbers_; }
  double above(double plot_width) const override {
    const double legend = legend_.height(plot_width);
    return (title_.empty() ? 0 : kLine + 4) + legend + (legend > 0 ? 6 : 2);
  }
  double plot_height() const override { return height_; }
  double below() const override { return kTickLength + kLine + (map_.column_label.empty() ? 0 : kLine); }

  void draw(Canvas& canvas, const Box& plot) const override {
    double y = plot.y - above(plot.width);
    if (!title_.empty()) {
      canvas.text(plot.x, y + kLine / 2, fitted(title_, kTitle, plot.width), kTitle, kInk);
      y += kLine + 4;
    }
    legend_.draw(canvas, plot.x, y, plot.width);
    if (grid_.values.empty()) {
      canvas.text(plot.x + plot.width / 2, plot.y + plot.height / 2, "empty", kLabel, kFaint, Align::kCenter);
    } else {
      draw_cells(canvas, plot);
    }
    canvas.frame(plot, kFaint);
    draw_rows(canvas, plot);
    draw_columns(canvas, plot);
    draw_bar(canvas, {plot.right() + 2 * kGap, plot.y, kBarWidth, plot.height});
  }

 private:
  void draw_cells(Canvas& canvas, const Box& plot) const {
    std::vector<Color> colors;
    colors.reserve(grid_.values.size());
    for (const double value : grid_.values) colors.push_back(color_at(map_.scale, range_.position(value)));
    canvas.cells(plot, grid_.rows, grid_.columns, colors);
    canvas.clip(plot);
    for (const Line& line : map_.lines) {
      std::vector<Point> placed;
      for (const Point& p : line.points) {
        placed.push_back(
            {plot.x + grid_.column_blocks.middle_of(p.x) * plot.width, plot.y + grid_.row_blocks.middle_of(p.y) * plot.height});
      }
      draw_line(canvas, line, placed);
    }
    canvas.unclip();
  }

  // The rows that are named or numbered, with room for a line of text each.
  std::vector<CellName> row_marks(std::vector<int64_t>* at = nullptr) const {
    std::vector<CellName> marks;
    const double step = static_cast<double>(map_.rows) * (kNumber.size + 3) / height_;
    if (!map_.row_names.empty() && step <= 1) {
      for (int64_t row = 0; row < map_.rows; ++row) {
        marks.push_back(map_.row_names[static_cast<size_t>(row)]);
        if (at != nullptr) at->push_back(row);
      }
      return marks;
    }
    for (const IndexTick& tick : index_ticks(map_.first_row, map_.rows, 1.5 * step)) {
      marks.push_back({tick.text, kInk});
      if (at != nullptr) at->push_back(tick.index);
    }
    return marks;
  }

  void draw_rows(Canvas& canvas, const Box& plot) const {
    std::vector<int64_t> at;
    const std::vector<CellName> marks = row_marks(&at);
    for (size_t i = 0; i < marks.size(); ++i) {
      const double y = plot.y + grid_.row_blocks.middle_of(static_cast<double>(at[i])) * plot.height;
      canvas.line({plot.x - kTickLength, y}, {plot.x, y}, kFaint, 1);
      canvas.text(plot.x - kGap, y, marks[i].text, kNumber, marks[i].color, Align::kRight);
    }
    canvas.text_upward(plot.x - kGap - numbers_ - kUpward / 2, plot.y + plot.height / 2,
                       fitted(map_.row_label, kLabel, plot.height + 2 * kLine), kLabel, kInk);
  }

  void draw_columns(Canvas& canvas, const Box& plot) const {
    const double y = plot.bottom() + kTickLength + kLine / 2;
    const auto place = [&](double column) { return plot.x + grid_.column_blocks.middle_of(column) * plot.width; };
    if (!map_.column_names.empty()) {
      double free = plot.x - kLine;
      for (size_t i = 0; i < map_.column_names.size(); ++i) {
        const CellName& name = map_.column_names[i];
        const double x = place(static_cast<double>(i)), half = text_width(name.text, kName) / 2;
        if (x - half < free) continue;
        canvas.text(x, y, name.text, kName, name.color, Align::kCenter);
        free = x + half + kNameGap;
      }
    } else {
      const double spacing =
          text_width(std::string(static_cast<size_t>(widest_number(map_.first_column, map_.columns)), '0'), kNumber) + 24;
      for (const IndexTick& tick : index_ticks(map_.first_column, map_.columns, static_cast<double>(map_.columns) * spacing / plot.width)) {
        const double x = place(static_cast<double>(tick.index));
        canvas.line({x, plot.bottom()}, {x, plot.bottom() + kTickLength}, kFaint, 1);
        canvas.text(x, y, tick.text, kNumber, kInk, Align::kCenter);
      }
    }
    canvas.text(plot.x + plot.width / 2, y + kLine, fitted(map_.column_label, kLabel, plot.width), kLabel, kInk, Align::kCenter);
  }

  // The numbers beside the colour bar, from the top; three where there is room.
  std::vector<double> bar_values() const {
    const double middle = range_.low / 2 + range_.high / 2;
    return height_ < 4 * kNumber.size ? std::vector<double>{range_.high, range_.low} : std::vector<double>{range_.high, middle, range_.low};
  }

  void draw_bar(Canvas& canvas, const Box& bar) const {
    std::vector<Color> colors;
    const int steps = 128;
    for (int i = 0; i < steps; ++i) colors.push_back(color_at(map_.scale, 1 - static_cast<double>(i) / (steps - 1)));
    canvas.cells(bar, steps, 1, colors);
    canvas.frame(bar, kFaint);
    const std::vector<double> values = bar_values();
    const double first = bar.y + kNumber.size / 2, last = bar.bottom() - kNumber.size / 2;
    for (size_t i = 0; i < values.size(); ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(values.size() - 1);
      canvas.text(bar.right() + 4, first + share * (last - first), number_text(values[i]), kNumber, kInk);
    }
  }

  const Heatmap& map_;
  Legend legend_;
  double height_;
  Grid grid_;
  Range range_;
  std::string title_;
  double numbers_ = 0, bar_numbers_ = 0;  // widths of the widest row number and of the widest number beside the colour bar
};

}  // namespace

std::unique_ptr<PanelDrawing> heatmap_panel(const Heatmap& map, double width) {
  check_heatmap(map);
  return std::make_unique<HeatmapPanel>(map, width);
}

}  // namespace cyfa::draw
