// Mamba-3 (state-spaces/mamba), in the checkpoint layout of flash-linear-attention 0.6.0's mamba3. It has no convolution. B and C are
// normalized, biased and rotated by angles that accumulate with the time steps. Each step writes the current and the previous token in a
// learned proportion (trapezoidal rule). With is_mimo, each token has R keys and values instead of one. In terms of the paper's Table 1 it
// is ScalarGatedLA over interleaved ranks.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_mamba3(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
