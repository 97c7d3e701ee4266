// RetNet's multi-scale retention (FixedScalarGatedLA), in the checkpoint layout of flash-linear-attention 0.6.0: rotary embeddings and a
// fixed decay per head.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_retention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
