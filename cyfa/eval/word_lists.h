// The word lists of RULER's samples (words/README.md).
#pragma once

#include <string_view>
#include <vector>

namespace cyfa::eval {

// Lists without repetitions, sorted by bytes.
struct WordLists {
  std::vector<std::string_view> adjectives, nouns;
  std::vector<std::string_view> all;  // with the verbs
};

const WordLists& word_lists();

}  // namespace cyfa::eval
