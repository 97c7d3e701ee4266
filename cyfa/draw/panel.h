// A panel of a figure: what figure.cc arranges and line_panel.cc and heatmap_panel.cc draw.
#pragma once

#include <memory>

#include "cyfa/draw/figure.h"

namespace cyfa::draw {

inline constexpr Font kTitle = {.size = 14, .bold = true};
inline constexpr Font kLabel = {.size = 12};
inline constexpr Font kNumber = {.size = 11};
inline constexpr double kGap = 8;    // between parts of a panel
inline constexpr double kLine = 18;  // height of a line of labels
inline constexpr double kTickLength = 4;
inline constexpr double kUpward = 24;  // width of a label that is turned upward

// The rooms that a panel needs around its plot, which the figure gives all plots the same left and right edges for.
class PanelDrawing {
 public:
  virtual ~PanelDrawing() = default;

  virtual double left() const = 0;
  virtual double right() const = 0;
  virtual double above(double plot_width) const = 0;
  virtual double plot_height() const = 0;
  virtual double below() const = 0;
  virtual void draw(Canvas& canvas, const Box& plot) const = 0;
};

std::unique_ptr<PanelDrawing> line_panel(const LinePlot& plot);
std::unique_ptr<PanelDrawing> heatmap_panel(const Heatmap& map, double width);

// The names of lines with a sample of each, in as many rows as the width makes necessary, above the plot: no line can run through it.
class Legend {
 public:
  explicit Legend(const std::vector<Line>& lines) : lines_(lines) {}

  double height(double width) const { return static_cast<double>(rows(width).size()) * kLine; }
  // From the top edge `y` down.
  void draw(Canvas& canvas, double x, double y, double width) const;

 private:
  struct Entry {
    const Line* line;
    std::string name;
    double x;
  };
  std::vector<std::vector<Entry>> rows(double width) const;

  const std::vector<Line>& lines_;
};

// Draws a line's finite runs and its dots.
void draw_line(Canvas& canvas, const Line& line, const std::vector<Point>& placed);

}  // namespace cyfa::draw
