// A model's config: a Hugging Face config.json, read strictly.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "cyfa/mixers/registry.h"

namespace cyfa {

struct ModelConfig {
  const MixerKind* kind = nullptr;
  BackboneShape backbone;
  MixerFactory mixer;
  int64_t vocab_size = 32000;
  int64_t intermediate_size = 0;  // of the MLP; 0: blocks without one
  bool tied_head = false;         // tie_word_embeddings
  std::optional<int64_t> bos, pad;
  std::vector<int64_t> eos;  // any of them ends a text
  Json json;                 // as it came, bookkeeping included

  // Throws ConfigError: a key that is unknown, of the wrong type or out of range.
  static ModelConfig parse(const Json& json);
  // The same from a file; io::FileError names it.
  static ModelConfig read(const std::filesystem::path& path);
};

}  // namespace cyfa
