#include "cyfa/draw/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace cyfa::draw {
namespace {

std::string format(const char* pattern, auto... values) {
  std::array<char, 64> text = {};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

std::string tick_text(double value, int decimals) {
  const double size = std::abs(value);
  return size >= 1e7 || (size > 0 && decimals > 5) ? format("%.3g", value) : grouped(value, decimals);
}

}  // namespace

double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::vector<Tick> linear_ticks(double low, double high, int most) {
  if (!(high > low) || !std::isfinite(high - low)) return {{low, number_text(low)}};
  std::vector<Tick> ticks;
  const double step = round_step((high - low) / std::max(most - 1, 1));
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    ticks.push_back({i * step, tick_text(i * step + 0.0, decimals)});
  }
  return ticks;
}

std::vector<Tick> log_ticks(double low, double high, int most) {
  const auto ticks_of = [&](const std::vector<double>& factors, int each) {
    std::vector<Tick> ticks;
    const int first = static_cast<int>(std::floor(std::log10(low))), last = static_cast<int>(std::ceil(std::log10(high)));
    for (int power = first; power <= last; ++power) {
      if (((power % each) + each) % each != 0) continue;
      for (const double factor : factors) {
        const double at = factor * std::pow(10, power);
        if (at >= low * (1 - 1e-9) && at <= high * (1 + 1e-9)) ticks.push_back({at, tick_text(at, std::max(0, -power))});
      }
    }
    return ticks;
  };
  std::vector<Tick> ticks = ticks_of({1, 2, 5}, 1);
  for (int each = 1; static_cast<int>(ticks.size()) > most && each < 700; ++each) ticks = ticks_of({1}, each);
  return ticks;
}

std::string number_text(double value) { return format("%.3g", value == 0 ? 0.0 : value); }

std::string grouped(double value, int decimals) {
  std::string text = format("%.*f", decimals, std::abs(value));
  const size_t point = std::min(text.find('.'), text.size());
  for (size_t at = point; at > 3; at -= 3) text.insert(at - 3, ",");
  const bool zero = text.find_first_of("123456789") == std::string::npos;
  return (value < 0 && !zero ? "-" : "") + text;
}

}  // namespace cyfa::draw
