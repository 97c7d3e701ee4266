// Tokenizers: bytes, and SentencePiece models. Used by `cyfa prepare`, training and text generation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cyfa/model/config.h"

namespace cyfa {

// A direct-mapped cache of encoded words, for one thread. Its size is fixed: a word replaces another that maps to the same entry.
class WordCache {
 public:
  static constexpr size_t kMostBytes = 23, kMostIds = 9;

  WordCache();

  struct Entry {
    uint64_t key[3];  // the word, padded with zeros, with its length + 1 in the last byte
    uint32_t count;
    uint32_t ids[kMostIds];
  };
  // The entry of a word of at most kMostBytes. If it holds another word, the key is replaced, count becomes 0 and found is false.
  struct Place {
    Entry& entry;
    bool found;
  };
  Place place(std::string_view word);

 private:
  std::vector<Entry> entries_;
};

// Converts text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;  // "bytes", or the path of its file
  virtual int64_t vocab_size() const = 0;
  virtual uint64_t hash() const = 0;  // of everything that defines the tokenizer

  // The tokens of a text, without BOS and EOS. Names of special tokens in the text are not recognised. Any bytes are accepted; a character
  // tokenizer treats invalid UTF-8 as U+FFFD.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  // The same for many and long texts: appends to `ids`. `continues`: the text follows another one from which cut_text() separated it.
  virtual void append(std::string_view text, bool continues, WordCache& cache, std::vector<uint32_t>& ids) const;
  // Ids of the tokens that begin and end a text (BOS, EOS), if there are any.
  virtual std::optional<int64_t> bos() const { return std::nullopt; }
  virtual std::optional<int64_t> eos() const { return std::nullopt; }

  // The text of the tokens; BOS and EOS have none.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;

  // The bytes that a token adds to an existing text; empty for BOS, EOS and ids beyond the vocabulary.
  virtual std::string piece(int64_t id) const = 0;
};

// Tokens 0 .. 255 are the bytes, followed by BOS and EOS. Needs no file and reproduces any bytes.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kBegin = 256, kEnd = 257, kVocabulary = 258;

  std::string name() const override { return "bytes"; }
  int64_t vocab_size() const override { return kVocabulary; }
  uint64_t hash() const override;
  std::vector<int64_t> encode(std::string_view text) const override;
  void append(std::string_view text, bool continues, WordCache& cache, std::vector<uint32_t>& ids) const override;
  std::optional<int64_t> bos() const override { return kBegin; }
  std::optional<int64_t> eos() const override { return kEnd; }
  std::string decode(std::span<const int64_t> ids) const override;
  std::string piece(int64_t id) const override;
};

// Where to cut a text that is encoded in parts: before the last space that follows a word, or, if there is none, after the last complete
// character. Positive for every text that is not empty.
size_t cut_text(std::string_view text);

// The bytes of a SentencePiece model file. Throws io::FileError, also for a file that is larger than any model.
std::string read_tokenizer_file(const std::filesystem::path& path);

// name: "bytes", or the path of a SentencePiece model. Throws io::FileError.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name);

// The tokenizer of a checkpoint: its tokenizer.model, or "bytes" if its config says "tokenizer": "bytes". Throws io::FileError if there is
// neither, and if the tokenizer has more tokens than the model.
std::unique_ptr<Tokenizer> checkpoint_tokenizer(const std::filesystem::path& folder, const ModelConfig& config);

// Throws io::FileError if the tokenizer has more tokens than the model.
void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config);

}  // namespace cyfa
