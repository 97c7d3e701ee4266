#include "cyfa/draw/figure.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>

#include "cyfa/draw/panel.h"
#include "cyfa/io/atomic_file.h"

namespace cyfa::draw {
namespace {

constexpr Font kHeading = {.size = 19, .bold = true};
constexpr Font kNote = {.size = 12.5};
constexpr double kMargin = 18;
constexpr double kHeadingHeight = 34;
constexpr double kBetween = 20;  // between panels
constexpr double kNoteLine = 18;
constexpr double kLeastPlot = 200;  // width

}  // namespace

Canvas draw_figure(const Figure& figure, Format format) {
  if (figure.panels.empty()) throw std::invalid_argument("figure \"" + figure.title + "\": no panels; wanted at least one");
  const double inner = figure.width - 2 * kMargin;
  std::vector<std::unique_ptr<PanelDrawing>> panels;
  double left = 0, right = 0;
  for (const Panel& panel : figure.panels) {
    panels.push_back(std::holds_alternative<LinePlot>(panel) ? line_panel(std::get<LinePlot>(panel))
                                                             : heatmap_panel(std::get<Heatmap>(panel), inner));
    left = std::max(left, panels.back()->left());
    right = std::max(right, panels.back()->right());
  }
  const double plot_width = inner - left - right;
  if (!(plot_width >= kLeastPlot)) {
    throw std::invalid_argument("figure \"" + figure.title + "\": a width of " + std::to_string(figure.width) +
                                " points leaves too little room for its plots");
  }
  double height = kMargin + (figure.title.empty() ? 0 : kHeadingHeight);
  for (const auto& panel : panels) height += panel->above(plot_width) + panel->plot_height() + panel->below() + kBetween;
  std::vector<std::string> notes;
  for (const std::string& note : figure.notes) {
    for (std::string& line : wrapped(note, kNote, inner)) notes.push_back(std::move(line));
  }
  height += static_cast<double>(notes.size()) * kNoteLine + kMargin - kBetween / 2;

  Canvas canvas(format, figure.width, height);
  double y = kMargin;
  if (!figure.title.empty()) {
    canvas.text(kMargin, y + kHeading.size / 2, fitted(figure.title, kHeading, inner), kHeading, kInk);
    y += kHeadingHeight;
  }
  for (const auto& panel : panels) {
    y += panel->above(plot_width);
    panel->draw(canvas, {kMargin + left, y, plot_width, panel->plot_height()});
    y += panel->plot_height() + panel->below() + kBetween;
  }
  y -= kBetween / 2;
  for (const std::string& note : notes) {
    canvas.text(kMargin, y + kNoteLine / 2, note, kNote, kInk);
    y += kNoteLine;
  }
  return canvas;
}

Format picture_format(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  if (ending != ".png" && ending != ".svg") {
    throw std::invalid_argument(path.string() + ": a picture's name must end in .png or .svg");
  }
  return ending == ".png" ? Format::kPng : Format::kSvg;
}

void write_figure(const std::filesystem::path& path, const Figure& figure) {
  const std::vector<std::byte> bytes = draw_figure(figure, picture_format(path)).finish(figure.description);
  io::AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

std::vector<std::vector<Legend::Entry>> Legend::rows(double width) const {
  constexpr double kSample = 30, kBetweenNames = 20;
  std::vector<std::vector<Entry>> rows;
  double x = width;
  for (const Line& line : lines_) {
    if (line.name.empty() || line.points.empty()) continue;
    const std::string name = fitted(line.name, kLabel, width - kSample);
    const double wide = kSample + text_width(name, kLabel);
    if (rows.empty() || x + wide > width) {
      rows.emplace_back();
      x = 0;
    }
    rows.back().push_back({&line, name, x});
    x += wide + kBetweenNames;
  }
  return rows;
}

void Legend::draw(Canvas& canvas, double x, double y, double width) const {
  for (const std::vector<Entry>& row : rows(width)) {
    const double middle = y + kLine / 2;
    for (const Entry& entry : row) {
      const std::vector<Point> sample = {{x + entry.x, middle}, {x + entry.x + 22, middle}};
      canvas.polyline(sample, entry.line->color, std::max(entry.line->width, 1.5), entry.line->opacity, entry.line->stroke);
      if (entry.line->dots) canvas.dot({x + entry.x + 11, middle}, 3.2, entry.line->color);
      canvas.text(x + entry.x + 30, middle, entry.name, kLabel, kInk);
    }
    y += kLine;
  }
}

void draw_line(Canvas& canvas, const Line& line, const std::vector<Point>& placed) {
  std::vector<Point> run;
  const auto flush = [&] {
    canvas.polyline(run, line.color, line.width, line.opacity, line.stroke);
    run.clear();
  };
  for (const Point& p : placed) {
    if (std::isfinite(p.x) && std::isfinite(p.y)) {
      run.push_back(p);
      if (line.dots) canvas.dot(p, 3.2, line.color);
    } else {
      flush();
    }
  }
  flush();
}

}  // namespace cyfa::draw
