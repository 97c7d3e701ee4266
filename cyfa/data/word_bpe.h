// Byte pair encoding of single words, with the same result as SentencePiece. SentencePiece's priority queue handles texts of any length,
// and takes about ten times as long for a word of a few characters. Used by tokenizer.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cyfa {

class WordBpe {
 public:
  static constexpr size_t kMostBytes = 96;  // bytes of the longest word

  // A piece of the vocabulary.
  struct Piece {
    std::string text;
    float score = 0;
    uint32_t id = 0;
  };
  // `bytes`: the ids of the 256 byte tokens, which encode characters that are not pieces (byte fallback).
  WordBpe(std::vector<Piece> pieces, std::vector<uint32_t> bytes);

  // Appends the ids of a word of valid UTF-8, at most kMostBytes long. Starts with its characters and repeatedly merges the two neighbours
  // whose union is the piece with the highest score, the leftmost of equals.
  void append(std::string_view word, std::vector<uint32_t>& ids) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  // An entry of the hash table.
  struct Place {
    uint32_t hash = 0;
    uint32_t piece = kNone;
  };
  uint32_t find(std::string_view text) const;  // index in pieces_, or kNone

  std::vector<Piece> pieces_;
  std::vector<uint32_t> bytes_;
  std::vector<Place> table_;  // open addressing with linear probing
  size_t longest_ = 0;
};

}  // namespace cyfa
