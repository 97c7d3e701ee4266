// See word_lists.h.
#include "cyfa/eval/word_lists.h"

#include <algorithm>

#include "cyfa/eval/generated_texts.h"
#include "cyfa/eval/python_text.h"

namespace cyfa::eval {
namespace {

void add_lines(std::string_view text, std::vector<std::string_view>& list) {
  for (const std::string_view line : split(text, '\n')) {
    if (!line.empty()) list.push_back(line);
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

}  // namespace

const WordLists& word_lists() {
  static const WordLists lists = [] {
    WordLists l;
    add_lines(kAdjectives, l.adjectives);
    add_lines(kNouns, l.nouns);
    for (const char* text : {kAdjectives, kNouns, kVerbs}) add_lines(text, l.all);
    return l;
  }();
  return lists;
}

}  // namespace cyfa::eval
