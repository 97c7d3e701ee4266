// Text to tokens and back.
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

// Words that were encoded before, for one thread. Its size is fixed: a word replaces another that falls on the same place.
class WordCache {
 public:
  static constexpr size_t kMostBytes = 23, kMostIds = 9;

  WordCache();

  struct Entry {
    uint64_t key[3];  // the word, zeros, its length + 1 in the last byte
    uint32_t count;
    uint32_t ids[kMostIds];
  };
  // The place of a word of at most kMostBytes. Where it holds another word, key is changed to this one, count to 0, and found is false.
  struct Place {
    Entry& entry;
    bool found;
  };
  Place place(std::string_view word);

 private:
  std::vector<Entry> entries_;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;  // "bytes", or the file it was read from
  virtual int64_t vocab_size() const = 0;
  virtual uint64_t hash() const = 0;  // of what defines it

  // Without begin or end marks, whatever the text says. Any bytes are taken; a tokenizer of characters reads U+FFFD for those that are
  // none.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  // The same for long texts and many of them: adds to `ids`. A text that `continues` another goes on where cut_text() cut the two.
  virtual void append(std::string_view text, bool continues, WordCache& cache, std::vector<uint32_t>& ids) const;
  // Marks that begin and end a text, where there are such.
  virtual std::optional<int64_t> bos() const { return std::nullopt; }
  virtual std::optional<int64_t> eos() const { return std::nullopt; }

  virtual std::string decode(std::span<const int64_t> ids) const = 0;

  // The bytes that a token adds to a text that is already there; none for marks and for ids beyond the vocabulary.
  virtual std::string piece(int64_t id) const = 0;
};

// 256 bytes as tokens 0 .. 255, then the marks that begin and end a text. Needs no file, and gives back any bytes.
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

// Where to cut a text that is encoded in parts: before the last spaces that follow a word; where there are none, after the last whole
// character. More than 0 for every text that is not empty.
size_t cut_text(std::string_view text);

// "bytes", or the path of a SentencePiece model. Throws io::FileError.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name);

// The tokenizer of a checkpoint: its tokenizer.model, or "bytes" where its config says "tokenizer": "bytes". Throws io::FileError that
// says what was looked for, and for a tokenizer with more tokens than the model.
std::unique_ptr<Tokenizer> checkpoint_tokenizer(const std::filesystem::path& folder, const ModelConfig& config);

// Throws io::FileError if the tokenizer knows tokens that the model does not.
void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config);

}  // namespace cyfa
