#include "apps/amounts.h"

#include <array>

#include "apps/output.h"

namespace cyfa::app {
namespace {

// `value` in the largest of the units (the second is `step` times the first, and so on) of which it is at least one.
std::string scaled(double value, double step, const std::array<const char*, 4>& units) {
  size_t unit = 0;
  for (; unit + 1 < units.size() && value >= step * (1 - 5e-4); ++unit) value /= step;
  return text(unit == 0 ? "%.0f%s" : unit < 3 ? "%.1f%s" : "%.2f%s", value, units[unit]);
}

}  // namespace

std::string count_text(double count) { return scaled(count, 1000, {"", " thousand", " million", " billion"}); }
std::string short_count(double count) { return scaled(count, 1000, {"", "K", "M", "G"}); }
std::string bytes_text(double bytes) { return scaled(bytes, 1024, {" bytes", " KiB", " MiB", " GiB"}); }

}  // namespace cyfa::app
