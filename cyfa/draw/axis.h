// Ticks of an axis at round numbers.
#pragma once

#include <string>
#include <vector>

namespace cyfa::draw {

struct Tick {
  double at = 0;
  std::string text;
};

// The smallest of 1, 2 and 5 times a power of ten that is at least `least`, which is positive and finite.
double round_step(double least);

// Ticks within low .. high at multiples of a round step, at most `most` of them if most >= 2. Thousands are separated by commas.
std::vector<Tick> linear_ticks(double low, double high, int most);
// The same for a logarithmic axis, low > 0: powers of ten, with 2 and 5 times them where there is room.
std::vector<Tick> log_ticks(double low, double high, int most);

// A number with three significant digits.
std::string number_text(double value);
// An integer, or a number with `decimals` digits after the point; thousands are separated by commas.
std::string grouped(double value, int decimals = 0);

}  // namespace cyfa::draw
