// Blurry window attention (BLA), as the paper's appendix compares it: the gated slots of GSA with the Dirichlet profile of a fixed-rate
// clock as write weights, inside the surroundings of the cyclic flow mixer.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_blurry_window(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
