// A plot of curves as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cyfa {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // points that are not finite are left out
};

std::string curve_svg(const std::string& y_name, const std::string& x_name, const std::vector<Curve>& curves);

}  // namespace cyfa
