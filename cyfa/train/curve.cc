#include "cyfa/train/curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace cyfa {
namespace {

constexpr double kWidth = 760, kHeight = 420, kLeft = 70, kRight = 20, kTop = 20, kBottom = 50;
constexpr std::array<const char*, 4> kColours = {"#4063d8", "#cb3c33", "#389826", "#9558b2"};

std::string format(const char* pattern, auto... values) {
  std::array<char, 256> text = {};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

// Tick distance: 1, 2 or 5 times a power of ten, for about six ticks.
double tick_of(double range) {
  const double rough = std::max(range, 1e-12) / 6, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

struct Axis {
  double low = 0, high = 1, from = 0, to = 1;
  double place(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

}  // namespace

std::string curve_svg(const std::string& y_name, const std::string& x_name, const std::vector<Curve>& curves) {
  double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
  for (const Curve& curve : curves) {
    for (const auto& [px, py] : curve.points) {
      if (!std::isfinite(px) || !std::isfinite(py)) continue;
      x0 = std::min(x0, px), x1 = std::max(x1, px), y0 = std::min(y0, py), y1 = std::max(y1, py);
    }
  }
  if (!(x0 <= x1)) x0 = y0 = 0, x1 = y1 = 1;
  if (x1 == x0) x1 = x0 + 1;
  if (y1 == y0) y1 = y0 + 1;
  const Axis x{x0, x1, kLeft, kWidth - kRight}, y{y0 - 0.05 * (y1 - y0), y1 + 0.05 * (y1 - y0), kHeight - kBottom, kTop};
  std::string svg = format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" font-size=\"12\">\n",
                           kWidth, kHeight);
  svg += format("<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n", kWidth, kHeight);
  for (double t = std::ceil(y.low / tick_of(y.high - y.low)) * tick_of(y.high - y.low); t <= y.high; t += tick_of(y.high - y.low)) {
    svg += format("<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>", kLeft, kWidth - kRight, y.place(t), y.place(t));
    svg += format("<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n", kLeft - 8, y.place(t) + 4, t);
  }
  for (double t = std::ceil(x.low / tick_of(x.high - x.low)) * tick_of(x.high - x.low); t <= x.high; t += tick_of(x.high - x.low)) {
    svg += format("<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%.6g</text>\n", x.place(t), kHeight - kBottom + 18, t);
  }
  svg += format("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", (kLeft + kWidth - kRight) / 2, kHeight - 12, x_name.c_str());
  svg += format("<text x=\"18\" y=\"%g\" transform=\"rotate(-90 18 %g)\" text-anchor=\"middle\">%s</text>\n", kHeight / 2, kHeight / 2,
                y_name.c_str());
  double legend = kTop + 16;
  for (size_t i = 0; i < curves.size(); ++i) {
    if (curves[i].points.empty()) continue;
    const char* colour = kColours[i % kColours.size()];
    svg += format("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour);
    for (const auto& [px, py] : curves[i].points) {
      if (std::isfinite(px) && std::isfinite(py)) svg += format("%.1f,%.1f ", x.place(px), y.place(py));
    }
    svg += format("\"/>\n<text x=\"%g\" y=\"%g\" text-anchor=\"end\" fill=\"%s\">%s</text>\n", kWidth - kRight - 8, legend, colour,
                  curves[i].name.c_str());
    legend += 18;
  }
  return svg + "</svg>\n";
}

}  // namespace cyfa
