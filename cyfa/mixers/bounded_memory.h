// Attention with bounded-memory control (ABC) in the layout of flash-linear-attention 0.6.0: slots that keep a softmax-weighted mean of all
// that was written to them.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_bounded_memory(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
