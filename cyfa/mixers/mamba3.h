// Mamba-3 (state-spaces/mamba; the layout of flash-linear-attention 0.6.0's mamba3): no convolution; B and C normed, biased and turned by
// angles that accumulate with the time steps; writes of this token and of the last one in a learned proportion (the trapezoidal rule). With
// is_mimo, R keys and values a token instead of one. In terms of the paper's Table 1: ScalarGatedLA over interleaved ranks.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_mamba3(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
