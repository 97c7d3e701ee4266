// Mamba-2 (ScalarGatedLA), in the checkpoint layout of flash-linear-attention 0.6.0: one input projection, a short convolution over x, B
// and C, time steps that set both decay and write strength, a skip connection and a gated norm.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_mamba2(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
