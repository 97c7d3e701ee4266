// Kimi delta attention, KDA (RowGatedDeltaRule) in the layout of flash-linear-attention 0.6.0.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_kimi_delta_attention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
