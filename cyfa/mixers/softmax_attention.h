// Causal softmax attention with rotary positions: the mixer of LLaMA (every token before) and of Mistral (the last sliding_window of them),
// in the layouts of the transformers library. The memory is the cache of keys and values: it grows with the sequence, or is a ring.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_llama_attention(ConfigReader& config, const BackboneShape& backbone);
MixerFactory read_mistral_attention(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
