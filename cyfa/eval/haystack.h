// Text in which needles are hidden: a long text with its words and sentences.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cyfa::eval {

// A text as words that are separated by single spaces, and where its sentences begin. It is repeated as often as a sample needs.
//
// RULER finds sentences by NLTK's punkt, a trained model. Here a sentence ends with a word that ends in ".", "!" or "?" (and closing quotes
// or brackets) if the next word does not begin with a lower-case letter and the word is no abbreviation ("Mr.", "e.g.", "J.").
class Haystack {
 public:
  // Throws std::invalid_argument for a text without words.
  explicit Haystack(std::string_view text);

  // The text that comes with the program: Alice's Adventures in Wonderland.
  static const Haystack& provided();

  uint64_t hash() const;                                                     // of the text
  int64_t words() const { return static_cast<int64_t>(begin_.size()) - 1; }  // before it repeats
  // The sentences of the first `words` words.
  int64_t sentences(int64_t words) const;
  // The word that sentence i begins with; `words` for the sentence after the last one.
  int64_t sentence_begin(int64_t i, int64_t words) const;
  // Appends the words from `begin` to `end` with a space between two, nothing if there are none.
  void append(int64_t begin, int64_t end, std::string& text) const;

 private:
  bool begins_anew() const { return !first_.empty() && first_[0] == 0; }

  std::string text_;
  std::vector<size_t> begin_;   // of each word in text_, and one behind the space that would follow the last
  std::vector<int64_t> first_;  // words that begin a sentence in a text that follows itself
};

// Whether a sentence ends between two words.
bool sentence_ends(std::string_view word, std::string_view next);

}  // namespace cyfa::eval
