// Gated DeltaNet, GDN (ScalarGatedDeltaRule) in the layout of flash-linear-attention 0.6.0.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_gated_delta_net(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
