// Line plots as panels.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cyfa/draw/axis.h"
#include "cyfa/draw/panel.h"

namespace cyfa::draw {
namespace {

constexpr double kMostValue = 1e300;  // differences of such values are finite

// One axis in values; a logarithmic one compares logarithms.
struct Scale {
  double low = 0, high = 1;
  bool log = false;

  bool takes(double value) const { return std::abs(value) <= kMostValue && (!log || value > 0); }
  double place(double value) const {
    if (!takes(value)) return std::numeric_limits<double>::quiet_NaN();
    return log ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low)) : (value - low) / (high - low);
  }
  std::vector<Tick> ticks(int most) const { return log ? log_ticks(low, high, most) : linear_ticks(low, high, most); }
};

class LinePanel final : public PanelDrawing {
 public:
  explicit LinePanel(const LinePlot& plot) : plot_(plot), legend_(plot.lines) {
    x_ = scale_of(plot.log_x, [](const Point& p) { return p.x; }, 0, {}, {});
    y_ = scale_of(
        plot.log_y, [](const Point& p) { return p.y; }, 0.05, plot.y_low, plot.y_high);
    for (int most = std::max(2, static_cast<int>(plot.plot_height / 36)); most >= 1; --most) {
      y_ticks_ = y_.ticks(most);
      if (apart(y_ticks_)) break;
      y_ticks_.resize(1);
    }
    for (const Tick& tick : y_ticks_) numbers_ = std::max(numbers_, text_width(tick.text, kNumber));
  }

  double left() const override { return (plot_.y_label.empty() ? 0 : kUpward) + numbers_ + kGap; }
  // Half of a number at the right end of the axis.
  double right() const override { return 24; }
  double above(double plot_width) const override {
    const double legend = legend_.height(plot_width);
    return (plot_.title.empty() ? 0 : kLine + 4) + legend + (legend > 0 ? 6 : 4);
  }
  double plot_height() const override { return plot_.plot_height; }
  double below() const override { return kTickLength + kLine + (plot_.x_label.empty() ? 0 : kLine); }

  void draw(Canvas& canvas, const Box& plot) const override {
    double y = plot.y - above(plot.width);
    if (!plot_.title.empty()) {
      canvas.text(plot.x, y + kLine / 2, fitted(plot_.title, kTitle, plot.width), kTitle, kInk);
      y += kLine + 4;
    }
    legend_.draw(canvas, plot.x, y, plot.width);
    draw_axes(canvas, plot);
    canvas.clip({plot.x - 4, plot.y - 4, plot.width + 8, plot.height + 8});
    for (const Line& line : plot_.lines) {
      std::vector<Point> placed;
      for (const Point& p : line.points)
        placed.push_back({plot.x + x_.place(p.x) * plot.width, plot.bottom() - y_.place(p.y) * plot.height});
      draw_line(canvas, line, placed);
    }
    canvas.unclip();
  }

 private:
  Scale scale_of(bool log, auto value_of, double margin, std::optional<double> low, std::optional<double> high) const {
    Scale scale;
    scale.log = log;
    double least = std::numeric_limits<double>::infinity(), greatest = -least;
    for (const Line& line : plot_.lines) {
      for (const Point& p : line.points) {
        const double value = value_of(p);
        if (!scale.takes(value)) continue;
        least = std::min(least, value);
        greatest = std::max(greatest, value);
      }
    }
    if (!(least <= greatest)) least = log ? 0.1 : 0, greatest = 1;
    if (log) {
      const double factor = std::pow(greatest / least, margin);
      scale.low = low.value_or(least / (least == greatest ? 2 : factor));
      scale.high = high.value_or(greatest * (least == greatest ? 2 : factor));
    } else {
      const double room = least == greatest ? std::max(std::abs(least) * 0.1, 1e-6) : margin * (greatest - least);
      scale.low = low.value_or(least - room);
      scale.high = high.value_or(greatest + room);
    }
    if (!(scale.low < scale.high)) scale.high = scale.low + std::max(std::abs(scale.low), 1.0);
    return scale;
  }

  // As many ticks as fit side by side.
  std::vector<Tick> x_ticks(double width) const {
    std::vector<Tick> ticks;
    for (const double at : plot_.x_ticks) ticks.push_back({at, at == std::round(at) ? grouped(at) : number_text(at)});
    if (!ticks.empty() && fit(ticks, width)) return ticks;
    for (int most = 12; most >= 2; --most) {
      ticks = x_.ticks(most);
      if (fit(ticks, width)) return ticks;
    }
    return {};
  }

  bool fit(const std::vector<Tick>& ticks, double width) const {
    double free = -std::numeric_limits<double>::infinity();
    for (const Tick& tick : ticks) {
      const double middle = x_.place(tick.at) * width, half = text_width(tick.text, kNumber) / 2;
      if (middle - half < free) return false;
      free = middle + half + 12;
    }
    return true;
  }

  // Whether the numbers beside the y axis have a line each.
  bool apart(const std::vector<Tick>& ticks) const {
    for (size_t i = 1; i < ticks.size(); ++i) {
      if ((y_.place(ticks[i].at) - y_.place(ticks[i - 1].at)) * plot_.plot_height < kNumber.size + 2) return false;
    }
    return true;
  }

  void draw_axes(Canvas& canvas, const Box& plot) const {
    for (const Tick& tick : y_ticks_) {
      const double y = plot.bottom() - y_.place(tick.at) * plot.height;
      canvas.line({plot.x, y}, {plot.right(), y}, kGrid, 1);
      canvas.text(plot.x - kGap, y, tick.text, kNumber, kInk, Align::kRight);
    }
    canvas.line({plot.x, plot.bottom()}, {plot.right(), plot.bottom()}, kFaint, 1);
    for (const Tick& tick : x_ticks(plot.width)) {
      const double x = plot.x + x_.place(tick.at) * plot.width;
      canvas.line({x, plot.bottom()}, {x, plot.bottom() + kTickLength}, kFaint, 1);
      canvas.text(x, plot.bottom() + kTickLength + kLine / 2, tick.text, kNumber, kInk, Align::kCenter);
    }
    canvas.text(plot.x + plot.width / 2, plot.bottom() + kTickLength + 1.5 * kLine, fitted(plot_.x_label, kLabel, plot.width), kLabel, kInk,
                Align::kCenter);
    canvas.text_upward(plot.x - kGap - numbers_ - kUpward / 2, plot.y + plot.height / 2, fitted(plot_.y_label, kLabel, plot.height), kLabel,
                       kInk);
  }

  const LinePlot& plot_;
  Legend legend_;
  Scale x_, y_;
  std::vector<Tick> y_ticks_;
  double numbers_ = 0;  // width of the widest number beside the y axis
};

}  // namespace

std::unique_ptr<PanelDrawing> line_panel(const LinePlot& plot) { return std::make_unique<LinePanel>(plot); }

}  // namespace cyfa::draw
