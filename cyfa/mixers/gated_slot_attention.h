// Gated slot attention (GSA), in the checkpoint layout of flash-linear-attention 0.6.0. Each slot has a forget gate alpha and is written
// with weight 1 - alpha.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_gated_slot_attention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
