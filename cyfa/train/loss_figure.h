// The picture of the losses of training runs: run folders draw their own, and `cyfa show loss` lays several over each other.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cyfa/draw/figure.h"

namespace cyfa {

// The metrics of one run, as rows of metrics.jsonl.
struct RunLosses {
  std::string name;
  std::vector<draw::Point> training, validation;  // step and loss

  static RunLosses of(const std::string& name, const std::vector<nlohmann::ordered_json>& metrics);
};

// Means over a window of points around each, which is a tenth of all points wide and shrinks towards both ends, so that the line begins
// and ends at the run's own losses. Points that are not finite are left out.
std::vector<draw::Point> smoothed(const std::vector<draw::Point>& points);

// Each run has a colour: its training losses thin and pale, smoothed bold, its validation losses as dots.
draw::Figure loss_figure(const std::string& title, const std::vector<RunLosses>& runs);

}  // namespace cyfa
