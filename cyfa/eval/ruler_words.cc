// RULER's tasks of variables and words: variable tracking (vt), common words (cwe) and frequent words (fwe).
#include <algorithm>
#include <set>
#include <stdexcept>

#include "cyfa/eval/ruler_makers.h"
#include "cyfa/eval/word_lists.h"

namespace cyfa::eval {
namespace {

// Distinct words of random letters.
std::vector<std::string> random_words(size_t count, size_t letters, char first_letter, Draws& draws) {
  std::vector<std::string> words;
  std::set<std::string> seen;
  while (words.size() < count) {
    std::string word(letters, ' ');
    for (char& c : word) c = static_cast<char>(first_letter + draws.below(26));
    if (seen.insert(word).second) words.push_back(std::move(word));
  }
  return words;
}

class TrackingMaker final : public SampleMaker {
 public:
  TrackingMaker(const RulerOptions& options, TokenCounter& tokens) : short_(options.length < 4096) {
    constexpr int64_t kExampleTokens = 500;
    const std::optional<int64_t> lines = largest_size(kStatements, kExampleTokens, [&](int64_t size) {
      Draws draws(options.seed, "vt example");
      const RulerSample s = puzzle(size, 3, draws);
      return tokens(s.input + s.answer_prefix) + ruler_kind("vt").new_tokens;
    });
    example_lines_ = lines.value_or(kStatements);
  }

  int64_t smallest() const override { return kStatements; }
  int64_t step() const override { return short_ ? 5 : 10; }

  RulerSample make(int64_t, int64_t size, Draws draws) const override {
    const RulerSample example = puzzle(example_lines_, 3, draws);
    RulerSample sample = puzzle(size, 5, draws);
    std::string solved = example.input + example.answer_prefix;
    for (const std::string& name : example.outputs) solved += " " + name;
    sample.input = solved + "\n\n" + sample.input;
    return sample;
  }

 private:
  static constexpr int64_t kStatements = 5;

  // One chain of assignments among lines of noise.
  static RulerSample puzzle(int64_t size, size_t letters, Draws& draws) {
    RulerSample sample;
    sample.outputs = random_words(kStatements, letters, 'A', draws);
    const std::string value = std::to_string(10000 + draws.below(89999));
    std::vector<std::string> chain = {"VAR " + sample.outputs[0] + " = " + value};
    for (size_t i = 1; i < kStatements; ++i) chain.push_back("VAR " + sample.outputs[i] + " = VAR " + sample.outputs[i - 1] + " ");
    const std::vector<std::string> noise(static_cast<size_t>(size), kNoise);
    sample.input = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n" +
                   with_lines(noise, chain, sorted(draws.distinct(kStatements, size))) +
                   "\nQuestion: Find all variables that are assigned the value " + value + " in the text above.";
    sample.answer_prefix = " Answer: According to the chain(s) of variable assignment in the text above, " + std::to_string(kStatements) +
                           " variables are assigned the value " + value + ", they are: ";
    return sample;
  }

  bool short_;
  int64_t example_lines_ = 0;
};

class CommonWordsMaker final : public SampleMaker {
 public:
  explicit CommonWordsMaker(const RulerOptions& options) : short_(options.length < 4096), seed_(options.seed) {}

  int64_t smallest() const override { return kCommon; }
  int64_t step() const override { return 10; }

  RulerSample make(int64_t, int64_t size, Draws draws) const override {
    const List example = short_ ? list(20, 3, 1, draws) : list(40, 10, 3, draws);
    const List asked = short_ ? list(size, 6, 1, draws) : list(size, 30, 3, draws);
    RulerSample sample;
    sample.answer_prefix = " Answer: The top 10 words that appear most often in the list are:";
    sample.input = question(example.text) + sample.answer_prefix + " " + numbered({example.common.begin(), example.common.end()}) + "\n" +
                   question(asked.text);
    sample.outputs = asked.common;
    return sample;
  }

 private:
  static constexpr int64_t kCommon = 10;

  struct List {
    std::string text;
    std::vector<std::string> common;
  };

  static std::string question(const std::string& list) {
    return "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear most "
           "often.\n" +
           list + "\nQuestion: What are the 10 most common words in the above list?";
  }

  // `size` words, of which the first 10 appear `often` and the others `seldom` times. The order is the same permutation in every sample.
  List list(int64_t size, int64_t often, int64_t seldom, Draws& draws) const {
    const std::vector<std::string> words = distinct_words(size, draws);
    List made;
    made.common.assign(words.begin(), words.begin() + kCommon);
    std::vector<std::string_view> all;
    for (int64_t i = 0; i < size; ++i)
      all.insert(all.end(), static_cast<size_t>(i < kCommon ? often : seldom), words[static_cast<size_t>(i)]);
    Draws(seed_, "cwe").shuffle(all);
    made.text = numbered(all);
    return made;
  }

  // Words of the lists; where there are not enough of them, compounds of an adjective and a noun.
  static std::vector<std::string> distinct_words(int64_t size, Draws& draws) {
    const WordLists& lists = word_lists();
    const auto count = static_cast<size_t>(size);
    std::vector<std::string> words;
    if (count <= lists.all.size()) {
      std::vector<std::string_view> all = lists.all;
      draws.shuffle(all, count);
      words.assign(all.begin(), all.begin() + size);
      return words;
    }
    const auto nouns = static_cast<int64_t>(lists.nouns.size()), compounds = static_cast<int64_t>(lists.adjectives.size()) * nouns;
    if (size > compounds / 2) throw std::invalid_argument("cwe: there are no " + std::to_string(size) + " different words");
    std::set<int64_t> seen;
    while (words.size() < count) {
      const int64_t n = draws.below(compounds);
      if (!seen.insert(n).second) continue;
      words.push_back(std::string(lists.adjectives[static_cast<size_t>(n / nouns)]) + "-" +
                      std::string(lists.nouns[static_cast<size_t>(n % nouns)]));
    }
    return words;
  }

  bool short_;
  uint64_t seed_;
};

class FrequentWordsMaker final : public SampleMaker {
 public:
  FrequentWordsMaker(const RulerOptions& options, int64_t length)
      : vocabulary_(length / 50), step_(std::max<int64_t>(1, length / 32)), offset_(length / 6 % step_), seed_(options.seed) {
    if (vocabulary_ < 4)
      throw std::invalid_argument("fwe at length " + std::to_string(options.length) + ": wanted a length of 250 or more");
  }

  // Sizes are steps: a text has offset + size * step words, as when RULER starts at a sixth of the length.
  int64_t smallest() const override { return (kFewest - offset_ + step_ - 1) / step_; }
  int64_t step() const override { return 1; }

  RulerSample make(int64_t, int64_t size, Draws draws) const override {
    std::vector<std::string> vocabulary = random_words(static_cast<size_t>(vocabulary_), 6, 'a', draws);
    vocabulary[0] = "...";
    const auto words = static_cast<double>(offset_ + size * step_);
    std::vector<std::string_view> text;
    for (size_t i = 0; i < vocabulary.size(); ++i) {
      const auto rank = static_cast<double>(i + 1);
      text.insert(text.end(), static_cast<size_t>(words / (rank * rank) / kZeta2), vocabulary[i]);
    }
    Draws(seed_, "fwe").shuffle(text);  // the same permutation in every sample
    RulerSample sample;
    sample.input =
        "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared coded "
        "words. ";
    for (size_t i = 0; i < text.size(); ++i) {
      if (i > 0) sample.input += ' ';
      sample.input += text[i];
    }
    sample.input +=
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently appeared "
        "words in the above coded text?";
    sample.answer_prefix = " Answer: According to the coded text above, the three most frequently appeared words are:";
    sample.outputs = {vocabulary[1], vocabulary[2], vocabulary[3]};
    return sample;
  }

 private:
  static constexpr double kZeta2 = 1.6449340668482264;  // the sum of 1 / rank^2
  static constexpr int64_t kFewest = 27;                // words of a text in which the fourth most frequent word appears once

  int64_t vocabulary_, step_, offset_;
  uint64_t seed_;
};

}  // namespace

std::vector<int64_t> sorted(std::vector<int64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string with_lines(const std::vector<std::string>& lines, const std::vector<std::string>& inserted,
                       const std::vector<int64_t>& places) {
  std::string text;
  size_t next = 0;
  const auto add = [&](const std::string& line) {
    if (!text.empty()) text += '\n';
    text += line;
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    for (; next < places.size() && places[next] == static_cast<int64_t>(i); ++next) add(inserted[next]);
    add(lines[i]);
  }
  return text;
}

std::string numbered(const std::vector<std::string_view>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += ' ';
    text += std::to_string(i + 1) + ". ";
    text += words[i];
  }
  return text;
}

std::unique_ptr<SampleMaker> tracking_maker(const RulerOptions& options, TokenCounter& tokens) {
  return std::make_unique<TrackingMaker>(options, tokens);
}
std::unique_ptr<SampleMaker> common_words_maker(const RulerOptions& options) { return std::make_unique<CommonWordsMaker>(options); }
std::unique_ptr<SampleMaker> frequent_words_maker(const RulerOptions& options, int64_t length) {
  return std::make_unique<FrequentWordsMaker>(options, length);
}

}  // namespace cyfa::eval
