// See haystack.h.
#include "cyfa/eval/haystack.h"

#include <algorithm>
#include <stdexcept>

#include "cyfa/eval/generated_texts.h"
#include "cyfa/eval/python_text.h"
#include "cyfa/io/hash.h"

namespace cyfa::eval {
namespace {

constexpr std::string_view kAbbreviations[] = {
    "Mr.",   "Mrs.",    "Ms.",  "Dr.",  "Prof.", "St.",   "Mt.",  "Jr.",  "Sr.",   "Messrs.", "Mme.", "Mlle.", "Gen.", "Col.", "Maj.",
    "Capt.", "Lt.",     "Sgt.", "Rev.", "Hon.",  "Gov.",  "Sen.", "Rep.", "Pres.", "vs.",     "etc.", "e.g.",  "i.e.", "cf.",  "viz.",
    "al.",   "approx.", "Inc.", "Ltd.", "Co.",   "Corp.", "No.",  "Nos.", "Vol.",  "vol.",    "Fig.", "fig.",  "pp.",  "p.",   "ed.",
    "eds.",  "ca.",     "c.",   "Jan.", "Feb.",  "Mar.",  "Apr.", "Aug.", "Sept.", "Oct.",    "Nov.", "Dec."};

// The word without quotes and brackets at its end (the curly ones have three bytes).
std::string_view without_closing(std::string_view word) {
  for (bool more = true; more && !word.empty();) {
    more = false;
    for (const std::string_view mark : {"\"", "'", ")", "]", "*", "_", "\xE2\x80\x9D", "\xE2\x80\x99"}) {
      if (!word.ends_with(mark)) continue;
      word.remove_suffix(mark.size());
      more = true;
    }
  }
  return word;
}

}  // namespace

bool sentence_ends(std::string_view word, std::string_view next) {
  const std::string_view bare = without_closing(word);
  if (bare.empty() || std::string_view(".!?").find(bare.back()) == std::string_view::npos) return false;
  if (!next.empty() && next[0] >= 'a' && next[0] <= 'z') return false;
  if (bare.back() != '.') return true;
  const std::string_view plain = bare.substr(std::min(bare.find_first_not_of("\"'([*_"), bare.size() - 1));
  if (plain.size() == 2 && plain[0] >= 'A' && plain[0] <= 'Z' && plain != "I.") return false;  // an initial
  return std::find(std::begin(kAbbreviations), std::end(kAbbreviations), plain) == std::end(kAbbreviations);
}

Haystack::Haystack(std::string_view text) : text_(collapse(text)) {
  if (text_.empty()) throw std::invalid_argument("the haystack is a text without words");
  begin_.push_back(0);
  for (size_t at = text_.find(' '); at != std::string::npos; at = text_.find(' ', at + 1)) begin_.push_back(at + 1);
  begin_.push_back(text_.size() + 1);
  const auto word = [&](int64_t i) {
    const size_t begin = begin_[static_cast<size_t>(i)];
    return std::string_view(text_).substr(begin, begin_[static_cast<size_t>(i) + 1] - 1 - begin);
  };
  if (sentence_ends(word(words() - 1), word(0))) first_.push_back(0);
  for (int64_t i = 1; i < words(); ++i) {
    if (sentence_ends(word(i - 1), word(i))) first_.push_back(i);
  }
}

const Haystack& Haystack::provided() {
  static const Haystack text(kProvidedHaystack);
  return text;
}

uint64_t Haystack::hash() const { return io::hash64(text_); }

// The first word of all begins a sentence, whether or not the first word of a repetition does.
int64_t Haystack::sentences(int64_t all) const {
  if (all <= 0) return 0;
  const auto each = static_cast<int64_t>(first_.size());
  const int64_t last = std::lower_bound(first_.begin(), first_.end(), all % words()) - first_.begin();
  return all / words() * each + last + (begins_anew() ? 0 : 1);
}

int64_t Haystack::sentence_begin(int64_t i, int64_t all) const {
  if (i <= 0) return 0;
  if (i >= sentences(all)) return all;
  const auto each = static_cast<int64_t>(first_.size());
  const int64_t n = i - (begins_anew() ? 0 : 1);
  return n / each * words() + first_[static_cast<size_t>(n % each)];
}

void Haystack::append(int64_t begin, int64_t end, std::string& text) const {
  bool space = false;
  while (begin < end) {
    const int64_t from = begin % words(), to = std::min(words(), from + end - begin);
    if (space) text += ' ';
    space = true;
    const size_t first = begin_[static_cast<size_t>(from)];
    text.append(text_, first, begin_[static_cast<size_t>(to)] - 1 - first);
    begin += to - from;
  }
}

}  // namespace cyfa::eval
