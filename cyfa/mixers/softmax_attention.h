// Causal softmax attention with rotary positions: the mixer of LLaMA (every token before) and of Mistral (the last sliding_window of them),
// in the layouts of the transformers library. The memory is the cache of keys and values: it grows with the sequence, or is a ring.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

MixerFactory read_llama_attention(ConfigReader& config, const BackboneShape& backbone);
MixerFactory read_mistral_attention(ConfigReader& config, const BackboneShape& backbone);
// The same by the keys of flash-linear-attention's `attn` object: num_heads, num_kv_heads, qkv_bias, window_size, rope_theta.
MixerFactory read_attn_object(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
