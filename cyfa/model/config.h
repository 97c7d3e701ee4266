// A model's config: a Hugging Face config.json, read strictly.
//
// Layers may have different mixers (a hybrid). Two keys say which:
//   attn         an object, or a list of them, as in flash-linear-attention: `layers` (a list of layer numbers) are softmax attention with
//                num_heads, num_kv_heads, window_size, rope_theta and qkv_bias; all others have the mixer of the model_type
//   layer_types  a name for every layer: a model_type, "full_attention" or "sliding_attention". Keys of types other than the model's own
//                are in the object layer_configs, by type: {"sliding_attention": {"num_attention_heads": 8, "sliding_window": 512}}
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "cyfa/mixers/registry.h"

namespace cyfa {

struct ModelConfig {
  const MixerKind* kind = nullptr;
  BackboneShape backbone;
  // The mixers of the layers: the kinds that there are, and by layer which one, and what it is called.
  std::vector<MixerFactory> mixers;
  std::vector<size_t> layer_mixers;
  std::vector<std::string> layer_types;
  int64_t vocab_size = 32000;
  int64_t intermediate_size = 0;  // of the MLP; 0: blocks without one
  bool tied_head = false;         // tie_word_embeddings
  std::optional<int64_t> bos, pad;
  std::vector<int64_t> eos;  // any of them ends a text
  Json json;                 // as it came, bookkeeping included
  Json resolved;             // every key that counts, with its value or its default

  // Throws ConfigError: a key that is unknown, of the wrong type or out of range.
  static ModelConfig parse(const Json& json);
  // The same from a file; io::FileError names it.
  static ModelConfig read(const std::filesystem::path& path);
};

}  // namespace cyfa
