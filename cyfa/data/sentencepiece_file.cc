// See sentencepiece_file.h.
#include "cyfa/data/sentencepiece_file.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "cyfa/io/file_error.h"

namespace cyfa {
namespace {

constexpr size_t kMostPieces = size_t{1} << 21;  // far above any model

// Iterates over the fields of a message in protobuf wire format.
class Fields {
 public:
  Fields(std::string_view bytes, const std::filesystem::path& path) : bytes_(bytes), path_(path) {}

  // Throws io::FileError for a malformed field.
  bool next() {
    if (bytes_.empty()) return false;
    const uint64_t tag = varint();
    number = tag >> 3;
    value = 0;
    text = {};
    switch (tag & 7) {
      case 0: value = varint(); break;
      case 1: take(8); break;
      case 2: take(varint()); break;
      case 5: take(4); break;
      default: fail();
    }
    return true;
  }

  // The current field: its number, and its value (varint) or bytes.
  uint64_t number = 0, value = 0;
  std::string_view text;

 private:
  [[noreturn]] void fail() const { throw io::FileError(path_, "is not a SentencePiece model, or is damaged: it is no protocol buffer"); }

  uint64_t varint() {
    uint64_t to = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      to |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return to;
    }
    fail();
  }
  void take(uint64_t length) {
    if (length > bytes_.size()) fail();
    text = bytes_.substr(0, length);
    bytes_.remove_prefix(length);
  }

  std::string_view bytes_;
  const std::filesystem::path& path_;
};

// Checks a precompiled_charsmap: the length of a trie in bytes (32 bits), the trie, and the texts that replace its keys, each ending with a
// zero. The trie is a double array of Darts-clone: a unit that is a value has bit 31 set and the position of a text below it; any other
// unit leads to the 256 units around its own place xor its offset, of which that very one is a value if bit 8 is set.
bool rules_are_sound(std::string_view rules) {
  if (rules.empty()) return true;
  uint32_t length = 0;
  if (rules.size() < sizeof(length)) return false;
  std::memcpy(&length, rules.data(), sizeof(length));
  rules.remove_prefix(sizeof(length));
  if (length >= rules.size() || length % 1024 != 0 || length == 0) return false;
  const std::string_view texts = rules.substr(length);
  if (texts.back() != '\0') return false;
  const uint32_t units = length / 4;
  const auto unit_at = [&](uint32_t i) {
    uint32_t unit = 0;
    std::memcpy(&unit, rules.data() + size_t{i} * 4, 4);
    return unit;
  };
  const auto is_value = [&](uint32_t unit) { return (unit & 0x7FFFFFFFU) < texts.size(); };
  for (uint32_t i = 0; i < units; ++i) {
    const uint32_t unit = unit_at(i);
    if ((unit >> 31) != 0) {
      if (!is_value(unit)) return false;
      continue;
    }
    const uint32_t to = i ^ ((unit >> 10) << ((unit & (1U << 9)) >> 6));
    if ((to | 255U) >= units || ((unit & (1U << 8)) != 0 && !is_value(unit_at(to)))) return false;
  }
  return true;
}

void read_trainer(Fields trainer, SentencePieceTraits& traits) {
  while (trainer.next()) {
    if (trainer.number == 3) traits.bpe = trainer.value == 2;
    if (trainer.number == 35) traits.byte_fallback = trainer.value != 0;
    if (trainer.number == 24) traits.suffix = trainer.value != 0;
  }
}

void read_normalizer(Fields normalizer, SentencePieceTraits& traits) {
  while (normalizer.next()) {
    if (normalizer.number == 2) traits.rules = !normalizer.text.empty();
    if (normalizer.number == 3) traits.dummy_prefix = normalizer.value != 0;
    if (normalizer.number == 4) traits.one_space = normalizer.value != 0;
    if (normalizer.number == 5) traits.escapes = normalizer.value != 0;
  }
}

}  // namespace

SentencePieceTraits sentencepiece_traits(std::string_view model, const std::filesystem::path& path) {
  SentencePieceTraits traits;
  size_t pieces = 0;
  for (Fields all(model, path); all.next();) {
    const Fields inner(all.text, path);
    if (all.number == 1) {
      if (++pieces > kMostPieces)
        throw io::FileError(path, "has more than " + std::to_string(kMostPieces) + " pieces; no model has so many");
      for (Fields piece = inner; piece.next();) {
        if (piece.number == 3 && (piece.value == 4 || piece.value == 5)) traits.odd_pieces = true;
      }
    } else if (all.number == 2) {
      read_trainer(inner, traits);
    } else if (all.number == 3) {
      read_normalizer(inner, traits);
    }
    if (all.number != 3 && all.number != 5) continue;  // normalizer_spec and denormalizer_spec
    for (Fields rules = inner; rules.next();) {
      if (rules.number == 2 && !rules_are_sound(rules.text))
        throw io::FileError(path, "is damaged: its rules for the replacement of characters (precompiled_charsmap) are inconsistent");
    }
  }
  return traits;
}

}  // namespace cyfa
