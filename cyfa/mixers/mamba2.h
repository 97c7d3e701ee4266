// Mamba-2 (ScalarGatedLA) in the layout of flash-linear-attention 0.6.0: one projection, a convolution over x, B and C, time steps that
// decay and write, a skip and a gated norm.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_mamba2(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
