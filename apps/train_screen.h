// What `cyfa train` prints while it runs.
#pragma once

#include <string>

#include "apps/output.h"
#include "cyfa/train/recipe.h"

namespace cyfa::app {

// A number for a line of text: with `decimals`, or in scientific notation if it is too large for that.
std::string figure(double value, int decimals);
// 4m05s, 3h20m, 5d07h; "over 10 years" beyond.
std::string duration(double seconds);

// Progress: on a terminal a line that overwrites itself, elsewhere one line per logged step.
class TrainScreen {
 public:
  // `flops` are those of a token, forward and backward. Unless `quiet`, measures the device's speed with matrix products.
  TrainScreen(const Recipe& recipe, double flops, int ranks, bool quiet);

  // Floating-point operations per second of the fastest matrix product times the ranks, or of training if that has been faster; 0 if not
  // measured.
  double peak() const { return peak_; }
  void step(const Json& row);
  void note(const std::string& note) const;

 private:
  Recipe recipe_;
  double flops_;
  double peak_ = 0;
  bool terminal_, quiet_;
};

}  // namespace cyfa::app
