// Line plots as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cyfa {

// One named line.
struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // points that are not finite are skipped
};

// An SVG document with all curves and labelled axes.
std::string curve_svg(const std::string& y_name, const std::string& x_name, const std::vector<Curve>& curves);

}  // namespace cyfa
