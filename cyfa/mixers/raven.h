// Raven in the layout of flash-linear-attention 0.6.0: gated slots of which a router lets each token write to a few.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_raven(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
