// Causal softmax attention with rotary embeddings: the mixer of LLaMA (full attention) and of Mistral (attention to the last sliding_window
// tokens), in the checkpoint layouts of the transformers library. The state is the KV cache: it grows with the sequence, or is a ring
// buffer for a sliding window.
#pragma once

#include "cyfa/mixers/registry.h"

namespace cyfa {

// Read the keys of a LLaMA and of a Mistral config; throw ConfigError for an invalid value.
MixerFactory read_llama_attention(ConfigReader& config, const BackboneShape& backbone);
MixerFactory read_mistral_attention(ConfigReader& config, const BackboneShape& backbone);
// The same for the layer type sliding_attention: LLaMA's keys and a sliding_window, which must be given.
MixerFactory read_sliding_attention(ConfigReader& config, const BackboneShape& backbone);
// The same for the keys of flash-linear-attention's `attn` object: num_heads, num_kv_heads, qkv_bias, window_size, rope_theta.
MixerFactory read_attn_object(ConfigReader& config, const BackboneShape& backbone);

}  // namespace cyfa
