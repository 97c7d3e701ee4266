// See text_metrics.h.
#include "cyfa/eval/text_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "cyfa/eval/python_text.h"
#include "cyfa/eval/text.h"
#include "cyfa/io/file_error.h"

namespace cyfa::eval {
namespace {

bool is_punctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
}

// Lower case, without punctuation, with a space for each of the words a, an and the.
std::string normal_answer(std::string_view text) {
  std::string out, word;
  const auto end_word = [&] {
    out += word == "a" || word == "an" || word == "the" ? " " : word;
    word.clear();
  };
  for (const char32_t c : code_points(lower(text))) {
    if (is_punctuation(c)) continue;
    if (!is_word(c)) end_word();
    append_utf8(is_word(c) ? word : out, c);
  }
  end_word();
  return out;
}

// Nested calls of the package's recursion before Python refuses: of 1,000, those around it in the package and in LongBench's eval.py taken
// off. (Seen with rouge 1.0.1 and Python 3.11.)
constexpr size_t kMostCalls = 991;

using Sentence = std::vector<std::string>;

// The package drops a piece without any character, but keeps one of white space as a sentence of one empty word.
std::vector<Sentence> sentences(std::string_view text) {
  std::vector<Sentence> all;
  for (const std::string_view piece : split(text, '.')) {
    if (piece.empty()) continue;
    const std::vector<std::string_view> words = split(piece);
    all.emplace_back(words.begin(), words.end());
    if (words.empty()) all.back().emplace_back();
  }
  return all;
}

size_t distinct_words(const std::vector<Sentence>& all) {
  std::set<std::string_view> words;
  for (const Sentence& s : all) words.insert(s.begin(), s.end());
  return words.size();
}

// Adds the words of one longest common subsequence of x and y to `words`; false if Python's recursion would be too deep.
bool add_common(const Sentence& x, const Sentence& y, std::set<std::string>& words) {
  const size_t width = y.size() + 1;
  std::vector<uint32_t> table((x.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> uint32_t& { return table[i * width + j]; };
  for (size_t i = 1; i <= x.size(); ++i) {
    for (size_t j = 1; j <= y.size(); ++j) at(i, j) = x[i - 1] == y[j - 1] ? at(i - 1, j - 1) + 1 : std::max(at(i - 1, j), at(i, j - 1));
  }
  size_t i = x.size(), j = y.size(), calls = 1;
  for (; i > 0 && j > 0; ++calls) {
    if (x[i - 1] == y[j - 1]) {
      words.insert(x[i - 1]);
      --i, --j;
    } else if (at(i - 1, j) > at(i, j - 1)) {
      --i;
    } else {
      --j;
    }
  }
  return calls <= kMostCalls;
}

// The longest block that a[a_begin, a_end) and b[b_begin, b_end) have in common: of equally long ones the earliest in a, then in b.
// `places` lists where each character is in b; characters without a list do not begin a block, but blocks grow over them.
struct Block {
  size_t a, b, size;
};
using Places = std::unordered_map<char32_t, std::vector<size_t>>;

Block longest_block(std::u32string_view a, size_t a_begin, size_t a_end, std::u32string_view b, size_t b_begin, size_t b_end,
                    const Places& places) {
  Block best{a_begin, b_begin, 0};
  std::unordered_map<size_t, size_t> ending;  // at j: how long the block is that ends at a[i - 1] and b[j]
  for (size_t i = a_begin; i < a_end; ++i) {
    std::unordered_map<size_t, size_t> now;
    const auto found = places.find(a[i]);
    if (found != places.end()) {
      for (const size_t j : found->second) {
        if (j < b_begin) continue;
        if (j >= b_end) break;
        const auto before = j > 0 ? ending.find(j - 1) : ending.end();
        const size_t size = now[j] = (before == ending.end() ? 0 : before->second) + 1;
        if (size > best.size) best = {i + 1 - size, j + 1 - size, size};
      }
    }
    ending = std::move(now);
  }
  while (best.a > a_begin && best.b > b_begin && a[best.a - 1] == b[best.b - 1]) best = {best.a - 1, best.b - 1, best.size + 1};
  while (best.a + best.size < a_end && best.b + best.size < b_end && a[best.a + best.size] == b[best.b + best.size]) ++best.size;
  return best;
}

std::vector<std::string> numbers(std::string_view text) {
  std::vector<std::string> all(1);
  for (const char c : text) {
    if (c >= '0' && c <= '9') {
      all.back() += c;
    } else if (!all.back().empty()) {
      all.emplace_back();
    }
  }
  if (all.back().empty()) all.pop_back();
  return all;
}

}  // namespace

double qa_f1(std::string_view prediction, std::string_view answer) {
  const std::string said = normal_answer(prediction), wanted = normal_answer(answer);
  const std::vector<std::string_view> p = split(said), r = split(wanted);
  std::map<std::string_view, int64_t> left;
  for (const std::string_view word : r) ++left[word];
  const auto common = static_cast<double>(std::count_if(p.begin(), p.end(), [&](std::string_view word) { return left[word]-- > 0; }));
  if (common == 0) return 0;
  const double precision = common / static_cast<double>(p.size()), recall = common / static_cast<double>(r.size());
  return (2 * precision * recall) / (precision + recall);
}

double rouge_l(std::string_view prediction, std::string_view answer) {
  const std::vector<Sentence> said = sentences(prediction), wanted = sentences(answer);
  if (said.empty() || wanted.empty()) return 0;
  std::set<std::string> common;
  for (const Sentence& w : wanted) {
    for (const Sentence& s : said) {
      if (!add_common(w, s, common)) return 0;
    }
  }
  const double recall = static_cast<double>(common.size()) / static_cast<double>(distinct_words(wanted));
  const double precision = static_cast<double>(common.size()) / static_cast<double>(distinct_words(said));
  return 2.0 * ((precision * recall) / (precision + recall + 1e-8));
}

double difflib_ratio(std::u32string_view a, std::u32string_view b) {
  if (a.empty() && b.empty()) return 1;
  Places places;
  for (size_t j = 0; j < b.size(); ++j) places[b[j]].push_back(j);
  if (b.size() >= 200) std::erase_if(places, [&](const auto& place) { return place.second.size() > b.size() / 100 + 1; });

  struct Range {
    size_t a_begin, a_end, b_begin, b_end;
  };
  std::vector<Range> left = {{0, a.size(), 0, b.size()}};
  size_t matched = 0;
  while (!left.empty()) {
    const Range r = left.back();
    left.pop_back();
    const Block block = longest_block(a, r.a_begin, r.a_end, b, r.b_begin, r.b_end, places);
    if (block.size == 0) continue;
    matched += block.size;
    if (r.a_begin < block.a && r.b_begin < block.b) left.push_back({r.a_begin, block.a, r.b_begin, block.b});
    if (block.a + block.size < r.a_end && block.b + block.size < r.b_end)
      left.push_back({block.a + block.size, r.a_end, block.b + block.size, r.b_end});
  }
  return 2.0 * static_cast<double>(matched) / static_cast<double>(a.size() + b.size());
}

double code_similarity(std::string_view prediction, std::string_view answer) {
  prediction.remove_prefix(std::min(prediction.find_first_not_of('\n'), prediction.size()));
  std::string_view line;
  for (const std::string_view l : split(prediction, '\n')) {
    if (l.find_first_of("`#") != std::string_view::npos || l.find("//") != std::string_view::npos) continue;
    line = l;
    break;
  }
  const std::u32string a = code_points(line), b = code_points(answer);
  if (a == b) return 1;
  if (a.empty() || b.empty()) return 0;
  return std::nearbyint(100 * difflib_ratio(a, b)) / 100;
}

double classification(std::string_view prediction, std::string_view answer, std::span<const std::string> classes) {
  std::vector<std::string_view> named;
  for (const std::string& c : classes) {
    if (prediction.find(c) != std::string_view::npos) named.emplace_back(c);
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const std::string_view term = named[i];
    if (term == answer || answer.find(term) == std::string_view::npos) continue;
    named.erase(std::find(named.begin(), named.end(), term));  // the first that is equal
  }
  if (std::find(named.begin(), named.end(), answer) == named.end()) return 0;
  return 1.0 / static_cast<double>(named.size());
}

double count_match(std::string_view prediction, std::string_view answer) {
  const std::vector<std::string> all = numbers(prediction);
  if (all.empty()) return 0;
  return static_cast<double>(std::count(all.begin(), all.end(), answer)) / static_cast<double>(all.size());
}

double paragraph_match(std::string_view prediction, std::string_view answer) {
  constexpr std::string_view kBefore = "Paragraph ";
  for (size_t at = answer.find(kBefore); at != std::string_view::npos; at = answer.find(kBefore, at + 1)) {
    const std::string_view rest = answer.substr(at + kBefore.size());
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return count_match(prediction, numbers(rest).front());
  }
  throw std::invalid_argument("the answer " + io::printable(answer) + " names no paragraph; wanted \"Paragraph N\"");
}

std::string ruler_prediction(std::string_view generated) {
  std::string text(strip(generated));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c >= 0 && c < 0x20; }, '\n');
  return std::string(strip(text));
}

bool occurs(std::string_view part, std::string_view text) { return lower(text).find(lower(part)) != std::string::npos; }

}  // namespace cyfa::eval
