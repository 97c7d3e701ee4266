// Blurry window attention (BLA), the ablation in the paper's appendix: the gated slots of GSA, written with the Dirichlet profile of a
// fixed-rate clock. Projections, norms and output gate are those of the cyclic flow mixer.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_blurry_window(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
