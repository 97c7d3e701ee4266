// Gated slot attention (GSA) in the layout of flash-linear-attention 0.6.0: slots with gates, written with what the gates free.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_gated_slot_attention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
