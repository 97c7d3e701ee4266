// Gated linear attention, in the checkpoint layout of flash-linear-attention 0.6.0's gla: a low-rank gate on the rows of the state
// (RowGatedLA), or on its columns (ColumnGatedLA) if the config sets use_gv instead of use_gk.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Reads the keys of this mixer; throws ConfigError for an invalid value.
MixerFactory read_gated_linear_attention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
