// The metrics of generated text, against the packages that define them (tests/vectors/make_text_metrics.py) and by hand.
#include "cyfa/eval/text_metrics.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cyfa/eval/python_text.h"
#include "cyfa/io/json.h"

namespace cyfa::eval {
namespace {

std::string words(int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += (text.empty() ? "w" : " w") + std::to_string(i);
  return text;
}

TEST(TextMetrics, EqualThePackages) {
  const auto cases = io::read_json(CYFA_SOURCE_DIR "/tests/vectors/text_metrics.json");
  ASSERT_GT(cases.size(), 100U);
  for (const auto& c : cases) {
    const auto prediction = c["prediction"].get<std::string>(), answer = c["answer"].get<std::string>();
    SCOPED_TRACE(c.dump());
    if (c.contains("f1")) {
      EXPECT_EQ(qa_f1(prediction, answer), c["f1"].get<double>());
    }
    if (c.contains("rouge_l")) {
      EXPECT_EQ(rouge_l(prediction, answer), c["rouge_l"].get<double>());
    }
    if (c.contains("code")) {
      EXPECT_EQ(code_similarity(prediction, answer), c["code"].get<double>());
    }
    if (c.contains("classification")) {
      const auto classes = c["classes"].get<std::vector<std::string>>();
      EXPECT_EQ(classification(prediction, answer, classes), c["classification"].get<double>());
    }
  }
}

// The package walks the table by recursion: one word less than this is the longest that it can score.
TEST(TextMetrics, RougeOfASentenceTooLongForPythonIsZero) {
  EXPECT_GT(rouge_l(words(0, 990), "z w0"), 0);
  EXPECT_EQ(rouge_l(words(0, 991), "z w0"), 0);
}

TEST(TextMetrics, ByHand) {
  EXPECT_DOUBLE_EQ(qa_f1("The cat, the CAT!", "a cat"), 2.0 / 3);  // precision 1 / 2, recall 1
  EXPECT_EQ(qa_f1("", ""), 0);
  EXPECT_EQ(qa_f1("the", "a"), 0);
  EXPECT_EQ(difflib_ratio(U"abcd", U"bcde"), 0.75);
  EXPECT_EQ(difflib_ratio(U"", U""), 1);
  EXPECT_EQ(code_similarity("\n\nreturn x\nreturn y", "return x"), 1);
  EXPECT_EQ(code_similarity("# a comment\n```\nab", "ba"), 0.5);
  EXPECT_EQ(code_similarity("# only a comment", "x"), 0);
  const std::vector<std::string> classes = {"Number", "Number of something", "Date"};
  EXPECT_EQ(classification("Type: Number of something", "Number of something", classes), 1);
  EXPECT_EQ(classification("Number of something or Date", "Date", classes), 1.0 / 3);
  EXPECT_EQ(classification("", "Date", classes), 0);
  EXPECT_EQ(count_match("There are 12, or 13 or 12.", "12"), 2.0 / 3);
  EXPECT_EQ(count_match("none", "12"), 0);
  EXPECT_EQ(paragraph_match("Paragraph 3", "Paragraph 3"), 1);
  EXPECT_EQ(paragraph_match("Paragraph 13", "Paragraph 3"), 0);
  EXPECT_THROW(paragraph_match("Paragraph 3", "Paragraph three"), std::invalid_argument);
  EXPECT_EQ(ruler_prediction(" \x01 7\t8 \n"), "7\n8");
  EXPECT_TRUE(occurs("NAÏVE", "a naïve one"));
  EXPECT_FALSE(occurs("8", "7"));
}

TEST(PythonText, Splits) {
  EXPECT_EQ(split(" a\u2003b\t\n c\u00a0"), (std::vector<std::string_view>{"a", "b", "c"}));
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string_view>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), std::vector<std::string_view>{""});
  EXPECT_EQ(collapse("  x \n y "), "x y");
  EXPECT_EQ(code_points("a\xff\xe2\x82"), U"a\uFFFD\uFFFD");
  std::string text;
  for (const char32_t c : {U'a', U'é', U'日', U'😀'}) append_utf8(text, c);
  EXPECT_EQ(text, "aé日😀");
  EXPECT_TRUE(is_word(U'_') && is_word(U'é') && is_word(U'½') && is_word(U'日') && is_word(U'9'));
  EXPECT_FALSE(is_word(U'—') || is_word(U'“') || is_word(U' ') || is_word(U'.') || is_word(0));
}

}  // namespace
}  // namespace cyfa::eval
