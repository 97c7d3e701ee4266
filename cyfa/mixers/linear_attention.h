// Linear attention (LA of the paper's Table 1) in the layout of flash-linear-attention 0.6.0's linear_attn: a feature map of q and k, the
// op, RMSNorm.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_linear_attention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
