// RULER's samples: sizes, places of needles, prompts to the character, seeds, damaged files.
#include "cyfa/eval/ruler.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cyfa/eval/python_text.h"
#include "cyfa/eval/word_lists.h"
#include "cyfa/io/file_error.h"
#include "tests/shared_folder.h"

namespace cyfa::eval {
namespace {

const Tokenizer& small_tokenizer() {
  static const auto tokenizer = load_tokenizer(CYFA_SOURCE_DIR "/models/cyfa-4m/tokenizer.model");
  return *tokenizer;
}

RulerGenerator generator(const std::string& task, int64_t length, uint64_t seed = 42, const Tokenizer& tokenizer = small_tokenizer(),
                         const Haystack* haystack = nullptr) {
  return {ruler_kind(task), tokenizer, {.length = length, .seed = seed, .haystack = haystack}};
}

size_t times(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<std::string> without_questions() {
  std::vector<std::string> names;
  for (const RulerKind& kind : ruler_kinds()) {
    if (kind.qa_files == nullptr) names.emplace_back(kind.name);
  }
  return names;
}

// Samples fill nine tenths of a length, or a bit less where it is short or a list of words grows in steps, and never exceed it.
TEST(Ruler, SamplesFillTheLength) {
  for (const std::string& task : without_questions()) {
    for (const int64_t length : {1024, 6000}) {
      const RulerGenerator g = generator(task, length);
      for (int64_t i = 0; i < 3; ++i) {
        const RulerSample s = g.sample(i);
        SCOPED_TRACE(task + " " + std::to_string(length) + " " + std::to_string(s.length));
        EXPECT_LE(s.length, length);
        EXPECT_GE(s.length, length * 9 / 10 - (task == "cwe" || task == "fwe" || length == 1024 ? length / 16 : 0));
        EXPECT_EQ(s.length, static_cast<int64_t>(small_tokenizer().encode(s.input + s.answer_prefix).size()) + ruler_kind(task).new_tokens);
        for (const std::string& output : s.outputs) EXPECT_NE(s.input.find(output), std::string::npos);
      }
    }
  }
}

TEST(Ruler, EqualSeedsGiveEqualSamples) {
  for (const std::string& task : without_questions()) {
    SCOPED_TRACE(task);
    const RulerSample one = generator(task, 2048).sample(7), same = generator(task, 2048).sample(7);
    EXPECT_EQ(one.input, same.input);
    EXPECT_EQ(one.outputs, same.outputs);
    EXPECT_NE(one.outputs, generator(task, 2048, 43).sample(7).outputs);
    EXPECT_NE(one.outputs, generator(task, 2048).sample(8).outputs);
  }
}

// What the generator of random numbers gives on every machine.
TEST(Ruler, DrawsAreFixed) {
  Draws draws(42, "a stream");
  const uint64_t first = draws.bits();
  EXPECT_EQ(Draws(42, "a stream").bits(), first);
  EXPECT_NE(Draws(43, "a stream").bits(), first);
  EXPECT_NE(Draws(42, "another").bits(), first);
  EXPECT_EQ(generator("niah_single_1", 1024, 42, ByteTokenizer()).sample(0).outputs, std::vector<std::string>{"6093786"});
  std::vector<int> counts(10);
  for (int i = 0; i < 10000; ++i) ++counts[static_cast<size_t>(draws.below(10))];
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
  std::vector<int64_t> all = draws.distinct(10, 10);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Ruler, NoisePromptToTheCharacter) {
  const RulerSample s = generator("niah_single_1", 1024).sample(0);
  const std::string noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
  const std::vector<std::string_view> lines = split(s.input, '\n');
  ASSERT_GT(lines.size(), 4U);
  EXPECT_EQ(
      lines.front(),
      "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the number afterwards.");
  std::string needle;
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    if (lines[i] == noise) continue;
    EXPECT_TRUE(needle.empty());
    needle = lines[i];
  }
  ASSERT_TRUE(needle.starts_with("One of the special magic numbers for ")) << needle;
  const size_t is = needle.find(" is: ");
  const std::string key = needle.substr(37, is - 37);
  EXPECT_EQ(needle.substr(is), " is: " + s.outputs[0] + ".");
  EXPECT_EQ(lines.back(), "What is the special magic number for " + key + " mentioned in the provided text?");
  EXPECT_EQ(s.answer_prefix, " The special magic number for " + key + " mentioned in the provided text is");
  EXPECT_EQ(s.outputs[0].size(), 7U);
}

TEST(Ruler, NeedlesInEssays) {
  const Haystack text("One two three. Four five. Six seven eight nine! Ten, eleven?");
  const RulerSample many = generator("niah_multiquery", 1500, 42, small_tokenizer(), &text).sample(1);
  EXPECT_EQ(times(many.input, "One of the special magic numbers for "), 4U);
  EXPECT_EQ(many.outputs.size(), 4U);
  EXPECT_TRUE(
      many.input.starts_with("Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz "
                             "you about the numbers afterwards.\n"));
  EXPECT_NE(many.input.find("\nWhat are all the special magic numbers for "), std::string::npos);
  EXPECT_EQ(times(many.answer_prefix, ", "), 3U);
  EXPECT_NE(many.answer_prefix.find(", and "), std::string::npos);
  // Without the needles, the haystack is the text repeated.
  std::string rest = many.input.substr(many.input.find('\n') + 1);
  rest.resize(rest.find('\n'));
  for (size_t at; (at = rest.find("One of the special")) != std::string::npos;) rest.erase(at, rest.find('.', at) + 1 - at);
  const std::string plain = collapse(rest), once = "One two three. Four five. Six seven eight nine! Ten, eleven? ";
  std::string repeated;
  while (repeated.size() < plain.size()) repeated += once;
  EXPECT_EQ(plain, repeated.substr(0, plain.size()));

  const RulerSample values = generator("niah_multivalue", 1500, 42, small_tokenizer(), &text).sample(1);
  EXPECT_EQ(values.outputs.size(), 4U);
  EXPECT_EQ(times(values.answer_prefix, " and "), 0U);

  const RulerSample uuid = generator("niah_single_3", 1500).sample(2);
  const std::string& u = uuid.outputs[0];
  ASSERT_EQ(u.size(), 36U);
  EXPECT_EQ(u[8], '-');
  EXPECT_EQ(u[14], '4');
  EXPECT_NE(std::string("89ab").find(u[19]), std::string::npos);
}

// Needles of 300 samples are spread over the whole essay.
TEST(Ruler, NeedlesAreEverywhere) {
  const ByteTokenizer bytes;
  const RulerGenerator g = generator("niah_single_2", 16000, 1, bytes);
  int first = 0, last = 0;
  for (int64_t i = 0; i < 300; ++i) {
    const std::string input = g.sample(i).input;
    const size_t at = input.find("One of the special"), begin = input.find('\n'), end = input.rfind('\n');
    first += at - begin < (end - begin) / 3 ? 1 : 0;
    last += at - begin > (end - begin) * 2 / 3 ? 1 : 0;
  }
  EXPECT_NEAR(first, 100, 40);
  EXPECT_NEAR(last, 100, 40);
}

TEST(Ruler, VariableTracking) {
  const RulerSample s = generator("vt", 2048).sample(0);
  ASSERT_EQ(s.outputs.size(), 5U);
  const std::string& input = s.input;
  const size_t asked = input.rfind("Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n");
  ASSERT_GT(asked, 100U);  // behind the worked example
  EXPECT_EQ(input.substr(asked - 2, 2), "\n\n");
  size_t at = asked;
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(s.outputs[i].size(), 5U);
    at = input.find(i == 0 ? "\nVAR " + s.outputs[0] + " = " : "\nVAR " + s.outputs[i] + " = VAR " + s.outputs[i - 1] + " \n", at);
    ASSERT_NE(at, std::string::npos) << i;
  }
  EXPECT_EQ(times(input, ", 5 variables are assigned the value "), 1U);  // the example's prefix; the other is apart
  EXPECT_TRUE(s.answer_prefix.ends_with(", they are: "));
  EXPECT_NE(input.find(", they are:  "), std::string::npos);
}

TEST(Ruler, CommonAndFrequentWords) {
  const RulerSample common = generator("cwe", 8192).sample(0);
  ASSERT_EQ(common.outputs.size(), 10U);
  const std::string asked = common.input.substr(common.input.rfind("Below is a numbered list"));
  for (const std::string& word : common.outputs) EXPECT_GE(times(asked + " ", ". " + word + " "), 20U) << word;
  EXPECT_EQ(times(common.input, "\nBelow is a numbered list"), 1U);
  EXPECT_NE(common.input.find(" Answer: The top 10 words that appear most often in the list are: 1. "), std::string::npos);

  const RulerSample frequent = generator("fwe", 4096).sample(0);
  ASSERT_EQ(frequent.outputs.size(), 3U);
  std::vector<size_t> counts;
  for (const std::string& word : frequent.outputs) counts.push_back(times(frequent.input, word));
  EXPECT_GT(counts[0], counts[1]);
  EXPECT_GT(counts[1], counts[2]);
  EXPECT_NEAR(static_cast<double>(counts[0]) / static_cast<double>(counts[2]), 4, 0.5);  // ranks 2 and 4 of 1 / rank^2
  EXPECT_GT(times(frequent.input, "..."), counts[0]);
}

TEST(Ruler, LargestSizeTakesFewTrials) {
  for (const int64_t most : {100, 5000, 1'000'000, 7'777'777}) {
    int trials = 0;
    const auto tokens = [&](int64_t size) {
      ++trials;
      return 90 + size * 13 / 10 + size % 3;
    };
    const int64_t size = largest_size(1, most, tokens).value();
    EXPECT_LE(tokens(size), most);
    EXPECT_GT(tokens(size + 1), most);
    EXPECT_LE(trials, 45);
  }
  EXPECT_FALSE(largest_size(1, 50, [](int64_t size) { return 90 + size; }).has_value());
}

TEST(Ruler, TooShortLengthsAreRefused) {
  for (const std::string& task : without_questions()) {
    for (const int64_t length : {1, 150, 180}) EXPECT_THROW(generator(task, length), std::invalid_argument) << task << " " << length;
  }
  try {
    generator("niah_single_1", 150);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("128 of them for the answer; wanted a greater length"), std::string::npos) << error.what();
  }
}

TEST(Ruler, ScoresAsRulerDoes) {
  const RulerKind& all = ruler_kind("niah_multivalue");
  EXPECT_EQ(ruler_score(all, {"12", "34"}, " 12 and 56\x01"), 0.5);
  EXPECT_EQ(ruler_score(ruler_kind("qa_1"), {"Paris", "Lyon"}, "in PARIS"), 1);
  EXPECT_EQ(ruler_score(ruler_kind("qa_1"), {"Paris", "Lyon"}, "in Rome"), 0);
  EXPECT_THROW(ruler_kind("niah"), std::invalid_argument);
}

TEST(Ruler, Questions) {
  const std::string squad =
      R"({"data": [{"paragraphs": [{"context": "Zebras run.", "qas": [{"question": "Who runs?", "answers": [{"text": "Zebras"}]},)"
      R"({"question": "Who flies?", "answers": [], "is_impossible": true}]}, {"context": "Apes climb.", "qas": []}]},)"
      R"({"paragraphs": [{"context": "Owls fly.", "qas": [{"question": "Who flies?", "answers": [{"text": "Owls"}, {"text": "the owls"}]}]}]}]})";
  const QaSource source = read_squad(squad, "squad.json");
  EXPECT_EQ(source.documents, (std::vector<std::string>{"Apes climb.", "Owls fly.", "Zebras run."}));
  ASSERT_EQ(source.questions.size(), 2U);
  EXPECT_EQ(source.questions[0].related, std::vector<int64_t>{0});
  const RulerGenerator g(ruler_kind("qa_1"), small_tokenizer(), {.length = 512, .questions = &source});
  EXPECT_EQ(g.most_samples(), 2);
  const RulerSample s = g.sample(1);
  EXPECT_EQ(s.outputs, (std::vector<std::string>{"Owls", "the owls"}));
  EXPECT_GE(times(s.input, "Owls fly."), 2U);  // three documents are too few, so they come again
  EXPECT_NE(s.input.find("The following are given documents.\n\nDocument 1:\n"), std::string::npos);
  EXPECT_TRUE(s.input.ends_with("\n\nQuestion: Who flies?"));
  EXPECT_THROW(g.sample(2), std::invalid_argument);

  const QaSource hotpot =
      read_hotpotqa(R"([{"question": "Q?", "answer": "yes", "context": [["T", ["One. ", "Two."]], ["U", ["Three."]]]}])", "h.json");
  EXPECT_EQ(hotpot.documents, (std::vector<std::string>{"T\nOne. Two.", "U\nThree."}));
  EXPECT_EQ(hotpot.questions[0].documents, (std::vector<int64_t>{0, 1}));

  for (const char* damaged : {"", "[", "{}", "[]", R"({"data": 3})", R"({"data": [{"paragraphs": [{}]}]})", R"([{"question": "Q?"}])"}) {
    EXPECT_THROW(read_squad(damaged, "squad.json"), io::FileError) << damaged;
    EXPECT_THROW(read_hotpotqa(damaged, "h.json"), io::FileError) << damaged;
  }
}

TEST(Haystack, Sentences) {
  EXPECT_TRUE(sentence_ends("again.", "Then"));
  EXPECT_TRUE(sentence_ends("said.'", "`No,"));
  EXPECT_TRUE(sentence_ends("what?”", "She"));
  EXPECT_TRUE(sentence_ends("I.", "Then"));
  for (const auto& [word, next] : std::vector<std::pair<const char*, const char*>>{
           {"Mr.", "Hare"}, {"(e.g.", "Two"}, {"J.", "Smith"}, {"what?", "she"}, {"and", "Then"}, {"3.14", "Pi"}, {"\"", "A"}})
    EXPECT_FALSE(sentence_ends(word, next)) << word << " " << next;

  const Haystack text("  a b.\n C d. E ");  // "a b. C d. E": the last word ends no sentence
  EXPECT_EQ(text.words(), 5);
  EXPECT_EQ(text.sentences(5), 3);
  EXPECT_EQ(text.sentences(2), 1);
  EXPECT_EQ(text.sentences(3), 2);
  EXPECT_EQ(text.sentences(10), 5);  // "E a b." goes on
  EXPECT_EQ(text.sentence_begin(0, 10), 0);
  EXPECT_EQ(text.sentence_begin(2, 10), 4);
  EXPECT_EQ(text.sentence_begin(3, 10), 7);
  EXPECT_EQ(text.sentence_begin(5, 10), 10);
  std::string out;
  text.append(3, 8, out);
  EXPECT_EQ(out, "d. E a b. C");
  out.clear();
  text.append(4, 4, out);
  EXPECT_EQ(out, "");
  EXPECT_EQ(Haystack("Aa. Bb.").sentences(4), 4);
  EXPECT_THROW(Haystack(" \n"), std::invalid_argument);
  EXPECT_GT(Haystack::provided().words(), 20000);
}

TEST(WordLists, AreThoseOfWonderwords) {
  EXPECT_EQ(word_lists().adjectives.size(), 910U);
  EXPECT_EQ(word_lists().nouns.size(), 6782U);
  EXPECT_EQ(word_lists().all.size(), 8166U);
}

}  // namespace
}  // namespace cyfa::eval
