// Pair merging for single words. SentencePiece does the same with a queue that serves a text of any length, which takes some ten times as
// long for a word of a few characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cyfa {

class WordBpe {
 public:
  static constexpr size_t kMostBytes = 96;

  struct Piece {
    std::string text;
    float score = 0;
    uint32_t id = 0;
  };
  // `bytes` are the ids of the 256 bytes, which stand for a character that is no piece.
  WordBpe(std::vector<Piece> pieces, std::vector<uint32_t> bytes);

  // Adds the ids of a word of at most kMostBytes, valid UTF-8: characters, then again and again the two neighbours whose union has the
  // highest score, the leftmost of equals.
  void append(std::string_view word, std::vector<uint32_t>& ids) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Place {
    uint32_t hash = 0;
    uint32_t piece = kNone;
  };
  uint32_t find(std::string_view text) const;  // index of a piece

  std::vector<Piece> pieces_;
  std::vector<uint32_t> bytes_;
  std::vector<Place> table_;  // open addressing
  size_t longest_ = 0;
};

}  // namespace cyfa
