// Gated DeltaNet, GDN (ScalarGatedDeltaRule), in the checkpoint layout of flash-linear-attention 0.6.0.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_gated_delta_net(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
