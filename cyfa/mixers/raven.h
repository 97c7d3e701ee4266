// Raven, in the checkpoint layout of flash-linear-attention 0.6.0: gated slots, with a router that lets each token write to only a few.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_raven(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
