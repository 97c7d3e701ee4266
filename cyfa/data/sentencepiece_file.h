// The file of a SentencePiece model, before the library sees it: what the library does not expose, and what it does not check.
#pragma once

#include <filesystem>
#include <string_view>

namespace cyfa {

struct SentencePieceTraits {
  bool bpe = false;            // trainer_spec.model_type
  bool suffix = false;         // trainer_spec.treat_whitespace_as_suffix
  bool rules = false;          // normalizer_spec.precompiled_charsmap: characters are replaced before the lookup
  bool dummy_prefix = true;    // normalizer_spec.add_dummy_prefix
  bool one_space = true;       // normalizer_spec.remove_extra_whitespaces
  bool escapes = true;         // normalizer_spec.escape_whitespaces
  bool byte_fallback = false;  // trainer_spec.byte_fallback
  bool odd_pieces = false;     // there are user-defined or unused pieces
};

// Reads the traits. Throws io::FileError for a file that is no protocol buffer, has more pieces than any model, or has replacement rules
// whose tables point outside themselves: the library would follow them.
SentencePieceTraits sentencepiece_traits(std::string_view model, const std::filesystem::path& path);

}  // namespace cyfa
