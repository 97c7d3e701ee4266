// Attention with bounded-memory control (ABC), in the checkpoint layout of flash-linear-attention 0.6.0. Each slot holds a softmax-weighted
// mean of everything written to it.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_bounded_memory(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
