// Linear attention (LA in the paper's Table 1), in the checkpoint layout of flash-linear-attention 0.6.0's linear_attn: feature maps of q
// and k, the recurrence, RMSNorm.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_linear_attention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
