// RetNet's multi-scale retention (FixedScalarGatedLA) in the layout of flash-linear-attention 0.6.0: rotary positions, a decay of its own
// for each head.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_retention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
