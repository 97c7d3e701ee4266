// Gated linear attention in the layout of flash-linear-attention 0.6.0's gla: a low-rank gate on the rows of the state (RowGatedLA), or on
// its columns (ColumnGatedLA) where the config says use_gv instead of use_gk.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_gated_linear_attention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
