// See word_bpe.h.
#include "cyfa/data/word_bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace cyfa {
namespace {

uint64_t hash_of(std::string_view text) {
  uint64_t hash = text.size() * 0x9E3779B97F4A7C15;
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t count = std::min<size_t>(text.size(), 8);
    std::memcpy(&word, text.data(), count);
    hash = (hash ^ word) * 0xBF58476D1CE4E5B9;
    hash ^= hash >> 32;
    text.remove_prefix(count);
  }
  return hash;
}

size_t character_bytes(char first) {
  const auto ones = static_cast<size_t>(std::countl_one(static_cast<uint8_t>(first)));
  return ones < 2 ? 1 : ones;
}

}  // namespace

WordBpe::WordBpe(std::vector<Piece> pieces, std::vector<uint32_t> bytes)
    : pieces_(std::move(pieces)), bytes_(std::move(bytes)), table_(std::bit_ceil(4 * pieces_.size() + 1)) {
  for (uint32_t i = 0; i < pieces_.size(); ++i) {
    longest_ = std::max(longest_, pieces_[i].text.size());
    const uint64_t hash = hash_of(pieces_[i].text);
    size_t place = hash & (table_.size() - 1);
    while (table_[place].piece != kNone) place = (place + 1) & (table_.size() - 1);
    table_[place] = {static_cast<uint32_t>(hash >> 32), i};
  }
}

uint32_t WordBpe::find(std::string_view text) const {
  if (text.size() > longest_) return kNone;
  const uint64_t hash = hash_of(text);
  for (size_t place = hash & (table_.size() - 1); table_[place].piece != kNone; place = (place + 1) & (table_.size() - 1)) {
    const Place& at = table_[place];
    if (at.hash == static_cast<uint32_t>(hash >> 32) && pieces_[at.piece].text == text) return at.piece;
  }
  return kNone;
}

void WordBpe::append(std::string_view word, std::vector<uint32_t>& ids) const {
  // Symbol i is word[begin[i] .. begin[i + 1]). both[i] is the piece formed by symbols i and i + 1, or kNone.
  uint8_t begin[kMostBytes + 1];
  uint32_t both[kMostBytes];
  size_t count = 0;
  for (size_t at = 0; at < word.size(); at = std::min(at + character_bytes(word[at]), word.size()))
    begin[count++] = static_cast<uint8_t>(at);
  begin[count] = static_cast<uint8_t>(word.size());
  const auto join = [&](size_t i) { both[i] = find(word.substr(begin[i], begin[i + 2] - begin[i])); };
  for (size_t i = 0; i + 1 < count; ++i) join(i);
  for (;;) {
    size_t best = kMostBytes;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (both[i] != kNone && (best == kMostBytes || pieces_[both[i]].score > pieces_[both[best]].score)) best = i;
    }
    if (best == kMostBytes) break;
    std::copy(begin + best + 2, begin + count + 1, begin + best + 1);
    std::copy(both + best + 1, both + count - 1, both + best);
    --count;
    if (best + 1 < count) join(best);
    if (best > 0) join(best - 1);
  }
  for (size_t i = 0; i < count; ++i) {
    const std::string_view symbol = word.substr(begin[i], begin[i + 1] - begin[i]);
    if (const uint32_t piece = find(symbol); piece != kNone) {
      ids.push_back(pieces_[piece].id);
    } else {
      for (const char c : symbol) ids.push_back(bytes_[static_cast<uint8_t>(c)]);
    }
  }
}

}  // namespace cyfa
