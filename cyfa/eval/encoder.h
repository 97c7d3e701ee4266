// Text to tokens as evaluations need it: the BOS policy, and pairs of a context and its continuation.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cyfa/data/tokenizer.h"

namespace cyfa::eval {

// A continuation and what the model sees before it. `context` is never empty.
struct TokenPair {
  std::vector<int64_t> context, continuation;
};

// Whether a BOS token begins every text: what the checkpoint's tokenizer does in transformers, if its tokenizer_config.json says so, else
// what SentencePiece models do there (they put it) and "bytes" does (it does not).
bool checkpoint_puts_bos(const std::filesystem::path& folder, const Tokenizer& tokenizer);

class Encoder {
 public:
  // `bos`: whether encode() puts the prefix token before every text. The prefix token is the model's BOS, else the tokenizer's, else EOS.
  Encoder(const Tokenizer& tokenizer, const ModelConfig& config, bool bos);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  bool puts_bos() const { return bos_; }
  int64_t prefix() const { return prefix_; }

  std::vector<int64_t> encode(std::string_view text) const;        // with BOS if the policy says so
  std::vector<int64_t> encode_plain(std::string_view text) const;  // without
  std::string decode(std::span<const int64_t> ids) const;          // BOS and EOS have no text

  // White space at the end of the context moves to the continuation; both are encoded as one text, which is cut after as many tokens as
  // the context has alone. An empty context is the prefix token. Throws std::invalid_argument if no token is left to score.
  TokenPair pair(std::string_view context, std::string_view continuation) const;

 private:
  const Tokenizer& tokenizer_;
  bool bos_;
  int64_t prefix_;
};

}  // namespace cyfa::eval
