// A picture of line plots and heat maps, one below the other, as PNG or SVG: one drawing for both. Labels are measured before they are
// placed, so that none overlap; tests/draw checks it.
#pragma once

#include <filesystem>
#include <optional>
#include <variant>

#include "cyfa/draw/canvas.h"
#include "cyfa/draw/heatmap.h"
#include "cyfa/draw/line.h"

namespace cyfa::draw {

// Lines over a common x axis, with a legend between title and plot.
struct LinePlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Line> lines;
  bool log_x = false;  // logarithmic; points that are not positive are left out
  bool log_y = false;
  std::optional<double> y_low, y_high;  // ends of the y axis; by default those of the points, with a margin
  std::vector<double> x_ticks;          // where ticks are wanted; empty: at round numbers
  double plot_height = 280;             // in points
};

using Panel = std::variant<LinePlot, Heatmap>;

struct Figure {
  std::string title;
  std::vector<Panel> panels;       // at least one
  std::vector<std::string> notes;  // paragraphs below the panels
  std::string description;         // stored in an SVG (Canvas::finish)
  double width = 880;              // in points
};

// Draws the figure. Throws std::invalid_argument if it has no panels or a panel's parts do not fit together.
Canvas draw_figure(const Figure& figure, Format format);

// The format that the file's name ends with, .png or .svg; throws std::invalid_argument for another ending.
Format picture_format(const std::filesystem::path& path);

// Replaces `path` atomically. Throws io::FileError and leaves it unchanged on failure.
void write_figure(const std::filesystem::path& path, const Figure& figure);

}  // namespace cyfa::draw
