// The colours of color.h. Scales are paths through Oklab (Ottosson 2020), a colour space in which equal steps look about equally large.
#include "cyfa/draw/color.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace cyfa::draw {
namespace {

constexpr Color kNotANumber = {128, 128, 128};

uint8_t srgb_byte(double linear) {
  const double clamped = std::clamp(linear, 0.0, 1.0);
  const double encoded = clamped <= 0.0031308 ? 12.92 * clamped : 1.055 * std::pow(clamped, 1 / 2.4) - 0.055;
  return static_cast<uint8_t>(std::lround(255 * encoded));
}

Color from_oklch(double lightness, double chroma, double hue_degrees) {
  const double hue = hue_degrees * std::numbers::pi / 180;
  const double a = chroma * std::cos(hue);
  const double b = chroma * std::sin(hue);
  const auto cube = [](double x) { return x * x * x; };
  const double l = cube(lightness + 0.3963377774 * a + 0.2158037573 * b);
  const double m = cube(lightness - 0.1055613458 * a - 0.0638541728 * b);
  const double s = cube(lightness - 0.0894841775 * a - 1.2914855480 * b);
  return {srgb_byte(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          srgb_byte(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          srgb_byte(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

double mix(double from, double to, double t) { return from + (to - from) * t; }

// The chroma stays within the sRGB gamut, so that no channel is clipped and no artificial edge appears.
Color sequential(double t) { return from_oklch(mix(0.18, 0.94, t), 0.085 + 0.09 * t * t * t, mix(315, 108, t)); }

Color paper(double t) { return from_oklch(mix(1.0, 0.35, t), 0.115 * std::sin(t * std::numbers::pi * 0.75), 258); }

Color diverging(double t) {
  const double distance = std::abs(2 * t - 1);
  return from_oklch(mix(0.97, 0.45, distance), 0.165 * distance, t < 0.5 ? 258 : 28);
}

}  // namespace

Color color_at(ColorScale scale, double position) {
  if (std::isnan(position)) {
    return kNotANumber;
  }
  const double t = std::clamp(position, 0.0, 1.0);
  return scale == ColorScale::kDiverging ? diverging(t) : scale == ColorScale::kPaper ? paper(t) : sequential(t);
}

Color line_color(size_t index) {
  constexpr std::array<Color, kLineColors> kColors = {
      {{31, 96, 173}, {204, 80, 40}, {45, 138, 72}, {140, 86, 170}, {199, 146, 20}, {24, 150, 160}, {200, 70, 130}, {110, 110, 110}}};
  return kColors[index % kLineColors];
}

}  // namespace cyfa::draw
