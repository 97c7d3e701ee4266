// A named line of a plot.
#pragma once

#include <string>
#include <vector>

#include "cyfa/draw/canvas.h"

namespace cyfa::draw {

struct Line {
  std::string name;           // in the legend; empty: not there
  std::vector<Point> points;  // a point that is not finite interrupts the line
  Color color = kInk;
  double width = 2;
  double opacity = 1;
  Stroke stroke = Stroke::kSolid;
  bool dots = false;  // a dot at every point
};

}  // namespace cyfa::draw
