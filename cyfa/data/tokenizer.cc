#include "cyfa/data/tokenizer.h"

#include <sentencepiece_processor.h>

#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/io/mapped_file.h"

namespace cyfa {
namespace {

constexpr size_t kMostModelBytes = 256 << 20;
constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, how SentencePiece writes a space

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::filesystem::path& path) : path_(path) {
    const io::MappedFile file(path);
    const auto bytes = file.bytes();
    if (bytes.size() > kMostModelBytes) throw io::FileError(path, "is larger than any SentencePiece model");
    const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const auto status = processor_.LoadFromSerializedProto(text);
    if (!status.ok()) throw io::FileError(path, "is not a SentencePiece model: " + std::string(status.message()));
    hash_ = io::hash64(bytes);
    pieces_.reserve(static_cast<size_t>(processor_.GetPieceSize()));
    for (int id = 0; id < processor_.GetPieceSize(); ++id) pieces_.push_back(bytes_of(id));
  }

  std::string name() const override { return path_.string(); }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  uint64_t hash() const override { return hash_; }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode(absl::string_view(text.data(), text.size()), &ids);
    if (!status.ok()) throw io::FileError(path_, "cannot encode this text: " + std::string(status.message()));
    return {ids.begin(), ids.end()};
  }

  // SentencePiece puts a space before the first word when it encodes; it goes again here.
  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    for (const int64_t id : ids) text += piece(id);
    return !text.empty() && text.front() == ' ' ? text.substr(1) : text;
  }

  std::string piece(int64_t id) const override { return id >= 0 && id < vocab_size() ? pieces_[static_cast<size_t>(id)] : ""; }

 private:
  std::string bytes_of(int id) const {
    if (processor_.IsControl(id)) return "";
    const std::string& piece = processor_.IdToPiece(id);
    if (processor_.IsByte(id)) return {static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16))};  // <0xNN>
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
};

}  // namespace

uint64_t ByteTokenizer::hash() const { return io::hash64("cyfa byte tokenizer 1"); }

std::vector<int64_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::decode(std::span<const int64_t> ids) const {
  std::string text;
  for (const int64_t id : ids) text += piece(id);
  return text;
}

std::string ByteTokenizer::piece(int64_t id) const { return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : ""; }

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
    throw io::FileError(folder, "holds no tokenizer.model, and its config does not say \"tokenizer\": \"bytes\"; name one with --tokenizer");
  }
  check_vocabulary(*tokenizer, config);
  return tokenizer;
}

void check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config) {
  if (tokenizer.vocab_size() > config.vocab_size) {
    throw io::FileError(tokenizer.name(), "has " + std::to_string(tokenizer.vocab_size()) + " tokens, the model " + std::to_string(config.vocab_size));
  }
}

}  // namespace cyfa
