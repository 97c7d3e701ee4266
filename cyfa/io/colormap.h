// Colour scales for heat maps: lightness, which the eye ranks best, follows the value.
#pragma once

#include "cyfa/io/png.h"

namespace cyfa::io {

enum class ColorScale {
  kSequential,  // dark violet at 0, through green, to light yellow at 1
  kDiverging,   // blue at 0, near white at 1/2, red at 1; for signed values
};

// The colour at `position`, clamped to 0 .. 1. NaN gives a grey that occurs in neither scale.
Color color_at(ColorScale scale, double position);

}  // namespace cyfa::io
