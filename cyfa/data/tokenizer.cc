// See tokenizer.h. A SentencePiece BPE model whose pieces never span words is encoded word by word, with a cache and WordBpe, which gives
// the same tokens as the library and is faster. Other models use the library.
#include "cyfa/data/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "cyfa/data/sentencepiece_file.h"
#include "cyfa/data/utf8.h"
#include "cyfa/data/word_bpe.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/io/read_file.h"

namespace cyfa {
namespace {

constexpr size_t kMostModelBytes = 64 << 20;
constexpr size_t kMostAtOnce = 1 << 20;  // bytes per call: SentencePiece needs about a hundred times the size of the text in memory
constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, which SentencePiece writes for a space

// Whether a text may be cut before the space at `at`: it must follow a word, and something must follow it. Not after U+2581, which
// SentencePiece treats as a space.
bool may_cut(std::string_view text, size_t at) {
  return at > 0 && at + 1 < text.size() && text[at - 1] != ' ' && text[at - 1] != kSpace.back();
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::filesystem::path& path) : path_(path) {
    const std::string model = read_tokenizer_file(path);
    const SentencePieceTraits traits = sentencepiece_traits(model, path);
    if (!load(model)) throw io::FileError(path, "is not a SentencePiece model, or is damaged: the library refuses it");
    hash_ = io::hash64(model);
    pieces_.reserve(static_cast<size_t>(processor_.GetPieceSize()));
    for (int id = 0; id < processor_.GetPieceSize(); ++id) pieces_.push_back(bytes_of(id));
    prefix_ = traits.dummy_prefix && !traits.suffix;
    by_words_ = traits.bpe && prefix_ && traits.escapes && !traits.rules && !traits.one_space && no_piece_crosses_words();
    if (by_words_ && traits.byte_fallback && !traits.odd_pieces) make_words();
  }

  std::string name() const override { return path_.string(); }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  uint64_t hash() const override { return hash_; }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    encode_whole(text, ids);
    return {ids.begin(), ids.end()};
  }

  void append(std::string_view text, bool continues, WordCache& cache, std::vector<uint32_t>& ids) const override {
    while (!text.empty()) {
      const std::string_view part = text.size() <= kMostAtOnce ? text : text.substr(0, cut_text(text.substr(0, kMostAtOnce)));
      text.remove_prefix(part.size());
      append_part(continues && prefix_ && part.size() > 1 && part.front() == ' ' ? part.substr(1) : part, cache, ids);
      continues = true;
    }
  }

  std::optional<int64_t> bos() const override { return mark(processor_.bos_id()); }
  std::optional<int64_t> eos() const override { return mark(processor_.eos_id()); }

  // SentencePiece adds a space before the first word when it encodes; it is removed here.
  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    for (const int64_t id : ids) text += piece(id);
    return !text.empty() && text.front() == ' ' ? text.substr(1) : text;
  }

  std::string piece(int64_t id) const override { return id >= 0 && id < vocab_size() ? pieces_[static_cast<size_t>(id)] : ""; }

 private:
  // The library's messages name lines of its sources, which say nothing to a user; they are not passed on.
  bool load(std::string_view model) {
    try {
      return processor_.LoadFromSerializedProto(absl::string_view(model.data(), model.size())).ok();
    } catch (const std::exception&) {
      return false;
    }
  }
  void encode_whole(std::string_view text, std::vector<int>& ids) const {
    if (!processor_.Encode(absl::string_view(text.data(), text.size()), &ids).ok())
      throw io::FileError(path_, "this SentencePiece model fails to encode a text of " + std::to_string(text.size()) + " bytes");
  }

  static std::optional<int64_t> mark(int id) { return id >= 0 ? std::optional<int64_t>(id) : std::nullopt; }

  // Whether words can be encoded independently: BPE merges pairs of neighbours, so symbols of two words never interact if no piece spans
  // both. The space before a word is the one that SentencePiece adds to every text.
  bool no_piece_crosses_words() const {
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      size_t word = 0;
      while (piece.compare(word, kSpace.size(), kSpace) == 0) word += kSpace.size();
      if (piece.find(kSpace, word) != std::string::npos || piece.find(' ') != std::string::npos) return false;
    }
    return processor_.PieceToId(absl::string_view(kSpace.data(), kSpace.size())) != processor_.unk_id();
  }

  void make_words() {
    std::vector<WordBpe::Piece> pieces;
    std::vector<uint32_t> bytes(256, static_cast<uint32_t>(processor_.unk_id()));
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsByte(id)) {
        bytes[static_cast<uint8_t>(pieces_[static_cast<size_t>(id)].front())] = static_cast<uint32_t>(id);
      } else if (!processor_.IsControl(id) && !processor_.IsUnknown(id)) {
        pieces.push_back({processor_.IdToPiece(id), processor_.GetScore(id), static_cast<uint32_t>(id)});
      }
    }
    words_.emplace(std::move(pieces), std::move(bytes));
  }

  void append_part(std::string_view text, WordCache& cache, std::vector<uint32_t>& ids) const {
    if (!by_words_) return append_whole(text, ids);
    size_t begin = 0;
    while (begin < text.size()) {
      size_t end = begin + 1;  // a word starts without its space, which the encoder adds
      for (;; ++end) {
        end = std::min(text.find(' ', end), text.size());
        if (end == text.size() || may_cut(text, end)) break;
      }
      append_word(text.substr(begin, end - begin), cache, ids);
      begin = end + 1;
    }
  }

  void append_word(std::string_view word, WordCache& cache, std::vector<uint32_t>& ids) const {
    if (word.size() > WordCache::kMostBytes) return append_new(word, ids);
    auto [entry, found] = cache.place(word);
    if (!found || entry.count > WordCache::kMostIds) {
      const size_t before = ids.size();
      append_new(word, ids);
      const size_t count = ids.size() - before;
      entry.count = static_cast<uint32_t>(count);
      if (count <= WordCache::kMostIds) std::copy(ids.end() - static_cast<std::ptrdiff_t>(count), ids.end(), entry.ids);
      return;
    }
    ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
  }

  // Encodes a word that is not in the cache.
  void append_new(std::string_view word, std::vector<uint32_t>& ids) const {
    char spelled[WordBpe::kMostBytes];
    size_t size = 0;
    const auto add = [&](std::string_view part) {
      if (size + part.size() <= sizeof(spelled)) std::memcpy(spelled + size, part.data(), part.size());
      size += part.size();
    };
    add(kSpace);
    for (const char& c : word) add(c == ' ' ? kSpace : std::string_view(&c, 1));
    if (!words_ || size > sizeof(spelled) || !is_utf8(word)) return append_whole(word, ids);
    words_->append({spelled, size}, ids);
  }

  void append_whole(std::string_view text, std::vector<uint32_t>& ids) const {
    std::vector<int> whole;
    encode_whole(text, whole);
    ids.insert(ids.end(), whole.begin(), whole.end());
  }

  // The byte of a piece <0xNN>.
  char byte_of(const std::string& piece) const {
    uint8_t byte = 0;
    const char* digits = piece.data() + 3;
    if (piece.size() != 6 || std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2)
      throw io::FileError(path_, "is damaged: the piece " + io::printable(piece) + " is said to be a byte; wanted <0xNN>");
    return static_cast<char>(byte);
  }

  std::string bytes_of(int id) const {
    if (processor_.IsControl(id)) return "";
    const std::string& piece = processor_.IdToPiece(id);
    if (processor_.IsByte(id)) return std::string(1, byte_of(piece));
    if (processor_.IsUnknown(id)) return "\xEF\xBF\xBD";
    std::string text;
    for (size_t at = 0; at < piece.size();) {
      if (piece.compare(at, kSpace.size(), kSpace) == 0) {
        text += ' ';
        at += kSpace.size();
      } else {
        text += piece[at++];
      }
    }
    return text;
  }

  std::filesystem::path path_;
  sentencepiece::SentencePieceProcessor processor_;
  uint64_t hash_ = 0;
  std::vector<std::string> pieces_;
  bool prefix_ = false;    // the model adds a space before every text
  bool by_words_ = false;  // texts are encoded word by word
  std::optional<WordBpe> words_;
};

constexpr size_t kPlaces = 1 << 17;  // entries; 8 MiB

}  // namespace

WordCache::WordCache() : entries_(kPlaces) {}

WordCache::Place WordCache::place(std::string_view word) {
  char bytes[24] = {};
  std::memcpy(bytes, word.data(), word.size());
  bytes[23] = static_cast<char>(word.size() + 1);  // an empty entry is all zeros
  uint64_t key[3];
  std::memcpy(key, bytes, sizeof(key));
  uint64_t hash = (key[0] ^ 0x6A09E667F3BCC909) * 0x9E3779B97F4A7C15;
  hash = (hash ^ (hash >> 32) ^ key[1]) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ (hash >> 29) ^ key[2]) * 0x94D049BB133111EB;
  Entry& entry = entries_[(hash >> 40) % kPlaces];
  const bool found = std::memcmp(entry.key, key, sizeof(key)) == 0;
  if (!found) {
    std::memcpy(entry.key, key, sizeof(key));
    entry.count = 0;
  }
  return {entry, found};
}

void Tokenizer::append(std::string_view text, bool, WordCache&, std::vector<uint32_t>& ids) const {
  const std::vector<int64_t> all = encode(text);
  ids.insert(ids.end(), all.begin(), all.end());
}

size_t cut_text(std::string_view text) {
  for (size_t at = text.size(); at-- > 0;) {
    if (text[at] == ' ' && may_cut(text, at)) return at;
  }
  const size_t whole = whole_characters(text);
  return whole > 0 ? whole : text.size();
}

uint64_t ByteTokenizer::hash() const { return io::hash64("cyfa byte tokenizer 1"); }

std::vector<int64_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

void ByteTokenizer::append(std::string_view text, bool, WordCache&, std::vector<uint32_t>& ids) const {
  const size_t before = ids.size();
  ids.resize(before + text.size());
  for (size_t i = 0; i < text.size(); ++i) ids[before + i] = static_cast<unsigned char>(text[i]);
}

std::string ByteTokenizer::decode(std::span<const int64_t> ids) const {
  std::string text;
  for (const int64_t id : ids) text += piece(id);
  return text;
}

std::string ByteTokenizer::piece(int64_t id) const { return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : ""; }

std::string read_tokenizer_file(const std::filesystem::path& path) { return io::read_file(path, kMostModelBytes, "a SentencePiece model"); }

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  return std::make_unique<SentencePieceTokenizer>(name);
}

std::unique_ptr<Tokenizer> checkpoint_tokenizer(const std::filesystem::path& folder, const ModelConfig& config) {
  std::unique_ptr<Tokenizer> tokenizer;
  const auto named = config.json.find("tokenizer");
  if (named != config.json.end() && *named == "bytes") {
    tokenizer = load_tokenizer("bytes");
  } else if (std::filesystem::exists(folder / "tokenizer.model")) {
    tokenizer = load_tokenizer((folder / "tokenizer.model").string());
  } else {
    throw io::FileError(folder,
                        "holds no tokenizer.model, and its config does not say \"tokenizer\": \"bytes\"; name one with --tokenizer");
  }
  check_vocabulary(*tokenizer, config);
  return tokenizer;
}

void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config) {
  if (tokenizer.vocab_size() > config.vocab_size) {
    throw io::FileError(tokenizer.name(),
                        "has " + std::to_string(tokenizer.vocab_size()) + " tokens, the model " + std::to_string(config.vocab_size));
  }
}

}  // namespace cyfa
