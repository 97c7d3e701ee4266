// The needle tasks of RULER: sentences "One of the special magic numbers for KEY is: VALUE." in a haystack of noise, essays or needles.
#include <cmath>

#include "cyfa/eval/ruler_makers.h"
#include "cyfa/eval/word_lists.h"

namespace cyfa::eval {
namespace {

constexpr int64_t kDepths = 40;  // places for needles in an essay, from its beginning to its end

std::string hexadecimal(uint64_t bits) {
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; bits >>= 4) text[i] = "0123456789abcdef"[bits & 15];
  return text;
}

// A version 4 UUID.
std::string uuid(Draws& draws) {
  std::string d = hexadecimal(draws.bits()) + hexadecimal(draws.bits());
  d[12] = '4';
  d[16] = "89ab"[d[16] >= 'a' ? (d[16] - 'a' + 2) & 3 : (d[16] - '0') & 3];
  return d.substr(0, 8) + "-" + d.substr(8, 4) + "-" + d.substr(12, 4) + "-" + d.substr(16, 4) + "-" + d.substr(20);
}

std::string drawn(std::string_view what, Draws& draws) {
  if (what == "uuids") return uuid(draws);
  if (what == "numbers") return std::to_string(1000000 + draws.below(9000000));
  const WordLists& words = word_lists();
  const auto one_of = [&](const std::vector<std::string_view>& list) {
    return std::string(list[static_cast<size_t>(draws.below(static_cast<int64_t>(list.size())))]);
  };
  const std::string adjective = one_of(words.adjectives);
  return adjective + "-" + one_of(words.nouns);
}

class NeedleMaker final : public SampleMaker {
 public:
  NeedleMaker(const NeedleForm& form, const RulerOptions& options, const Haystack& haystack)
      : form_(form), seed_(options.seed), haystack_(haystack), short_(options.length < 4096) {}

  int64_t smallest() const override { return essay() ? 1 : needles(); }
  int64_t step() const override { return essay() ? 500 : short_ ? 5 : 25; }

  RulerSample make(int64_t, int64_t size, Draws draws) const override {
    std::vector<std::string> keys, hidden;
    std::vector<std::vector<std::string>> values;
    for (int64_t k = 0; k < form_.keys; ++k) {
      keys.push_back(drawn(form_.key, draws));
      values.emplace_back();
      for (int64_t v = 0; v < form_.values; ++v) {
        values.back().push_back(drawn(form_.value, draws));
        hidden.push_back(needle(keys.back(), values.back().back()));
      }
    }
    Draws(seed_, "needles").shuffle(hidden);  // the same permutation in every sample, as RULER does it

    const std::string context = essay() ? in_essay(hidden, size, draws) : in_lines(hidden, size, draws);
    RulerSample sample;
    std::string query;
    const std::vector<int64_t> asked = draws.distinct(form_.queries, form_.keys);
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto k = static_cast<size_t>(asked[i]);
      query += (i == 0 ? "" : i + 1 < asked.size() ? ", " : ", and ") + keys[k];
      sample.outputs.insert(sample.outputs.end(), values[k].begin(), values[k].end());
    }
    const bool one = form_.queries * form_.values == 1;
    const std::string kind = form_.value.substr(0, form_.value.size() - (one ? 1 : 0));
    sample.input = (one ? "A special magic " : "Some special magic ") + kind + (one ? " is" : " are") +
                   " hidden within the following text. Make sure to memorize it. I will quiz you about the " + kind + " afterwards.\n" +
                   context + (one ? "\nWhat is the special magic " : "\nWhat are all the special magic ") + kind + " for " + query +
                   " mentioned in the provided text?";
    sample.answer_prefix = " The special magic " + kind + " for " + query + " mentioned in the provided text " + (one ? "is" : "are");
    return sample;
  }

 private:
  bool essay() const { return form_.haystack == NeedleForm::kEssay; }
  int64_t needles() const { return form_.keys * form_.values; }

  std::string needle(const std::string& key, const std::string& value) const {
    return "One of the special magic " + form_.value + " for " + key + " is: " + value + ".";
  }

  std::string in_lines(const std::vector<std::string>& hidden, int64_t size, Draws& draws) const {
    std::vector<std::string> lines;
    for (int64_t i = 0; i < size; ++i) {
      if (form_.haystack == NeedleForm::kNoise) {
        lines.emplace_back(kNoise);
      } else {
        const std::string key = drawn(form_.key, draws);
        lines.push_back(needle(key, drawn(form_.value, draws)));
      }
    }
    return with_lines(lines, hidden, sorted(draws.distinct(needles(), size)));
  }

  // Stretches of sentences and needles, joined by spaces. A stretch may be empty.
  std::string in_essay(const std::vector<std::string>& hidden, int64_t size, Draws& draws) const {
    const int64_t sentences = haystack_.sentences(size);
    std::vector<int64_t> at;
    for (const int64_t place : draws.distinct(needles(), kDepths)) {
      const double depth = std::nearbyint(100.0 * static_cast<double>(place) / (kDepths - 1));
      at.push_back(static_cast<int64_t>(static_cast<double>(sentences) * (depth / 100)));
    }
    at = sorted(at);
    std::string text;
    int64_t word = 0;
    for (size_t i = 0; i < hidden.size(); ++i) {
      const int64_t next = haystack_.sentence_begin(at[i], size);
      haystack_.append(word, next, text);
      text += " " + hidden[i] + " ";
      word = next;
    }
    haystack_.append(word, size, text);
    return text;
  }

  NeedleForm form_;
  uint64_t seed_;
  const Haystack& haystack_;
  bool short_;
};

}  // namespace

std::unique_ptr<SampleMaker> needle_maker(const NeedleForm& form, const RulerOptions& options, const Haystack& haystack) {
  return std::make_unique<NeedleMaker>(form, options, haystack);
}

}  // namespace cyfa::eval
