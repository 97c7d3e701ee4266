// A model's config: a Hugging Face config.json. Parsing is strict: unknown keys throw.
//
// Layers may have different mixers (a hybrid model). Two keys select them:
//   attn         an object, or a list of objects, as in flash-linear-attention: the layers listed in `layers` use softmax attention with
//                num_heads, num_kv_heads, window_size, rope_theta and qkv_bias; all others use the mixer of the model_type
//   layer_types  a type for every layer: a model_type, "full_attention" or "sliding_attention". The keys of types other than the model's
//                own are in the object layer_configs, by type: {"sliding_attention": {"num_attention_heads": 8, "sliding_window": 512}}
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "cyfa/mixers/registry.h"

namespace cyfa {

// A parsed config.
struct ModelConfig {
  const MixerKind* kind = nullptr;
  BackboneShape backbone;
  std::vector<MixerFactory> mixers;      // the distinct mixers
  std::vector<size_t> layer_mixers;      // for each layer, an index into `mixers`
  std::vector<std::string> layer_types;  // for each layer, the name of its mixer
  int64_t vocab_size = 32000;
  int64_t intermediate_size = 0;  // width of the MLP; 0 for no MLP
  bool tied_head = false;         // tie_word_embeddings
  std::optional<int64_t> bos, pad;
  std::vector<int64_t> eos;  // any of these tokens ends a text
  Json json;                 // the original config, including keys without effect
  Json resolved;             // every key that has an effect, with its value or default

  // Throws ConfigError for a key that is unknown, has the wrong type or is out of range.
  static ModelConfig parse(const Json& json);
  // The same from a file; throws io::FileError, which names the file.
  static ModelConfig read(const std::filesystem::path& path);
};

}  // namespace cyfa
