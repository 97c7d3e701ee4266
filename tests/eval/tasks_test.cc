// Tests tasks against hand-made files: prompts, scores, and what is said about files that are missing or damaged.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cyfa/eval/task.h"
#include "cyfa/io/file_error.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

using namespace eval;

class Tasks : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name, std::ios::binary) << text; }
  std::unique_ptr<Task> load(const std::string& name) {
    return load_task(parse_tasks({name}).at(0), {.files = files_, .encoder = encoder_, .max_length = 2048});
  }
  std::string error_of(const std::string& name) {
    try {
      load(name);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
  static std::vector<double> score(const Task& task, const std::vector<double>& found) {
    std::vector<Response> responses(found.size());
    for (size_t i = 0; i < found.size(); ++i) responses[i].log_likelihood = found[i];
    return task.score(0, responses);
  }
  static std::string prompt(const Task& task, int64_t i = 0) { return task.requests(i).at(0).context; }

  Folder folder_;
  DataFiles files_{folder_ / ""};
  ByteTokenizer tokenizer_;
  Encoder encoder_{tokenizer_, ModelConfig::parse([] {
                     Json config = small_config();
                     config.update(Json{{"vocab_size", 258}, {"bos_token_id", 256}});
                     return config;
                   }()),
                   false};
};

TEST_F(Tasks, ArcInBothFormats) {
  write("arc_easy.jsonl", R"({"question": "Why?", "choices": {"text": ["ab", "abcd"], "label": ["1", "2"]}, "answerKey": "2"})"
                          "\n\n"
                          R"({"query": "Question: Who?\nAnswer:", "choices": ["me", "you", "they"], "gold": 0})");
  const auto task = load("arc_easy");
  ASSERT_EQ(task->size(), 2);
  const std::vector<Request> r = task->requests(0);
  EXPECT_EQ(r[0].context, "Question: Why?\nAnswer:");
  EXPECT_EQ(r[1].continuation, " abcd");
  EXPECT_EQ(score(*task, {-3, -5}), (std::vector<double>{0, 1}));  // -1.5 and -1.25 a character
  EXPECT_EQ(score(*task, {-3, -3}), (std::vector<double>{0, 1}));  // the first of equal ones
  EXPECT_EQ(task->requests(1).size(), 3u);
}

TEST_F(Tasks, HellaSwagIsCleaned) {
  write("hellaswag.jsonl", R"({"activity_label": "Roof", "ctx_a": "[header] How to", "ctx_b": "dO It [title] now",)"
                           R"( "endings": ["[step] a   b", "c [title] d"], "label": "1"})");
  const auto task = load("hellaswag");
  const std::vector<Request> r = task->requests(0);
  EXPECT_EQ(r[0].context, "Roof: How to Do it. now");
  EXPECT_EQ(r[0].continuation, "  a  b");  // the deleted mark leaves a space
  EXPECT_EQ(r[1].continuation, " c. d");
}

TEST_F(Tasks, PiqaWithLabelsBesideIt) {
  write("piqa.jsonl", R"({"goal": "g", "sol1": "a ", "sol2": "b"})"
                      "\n"
                      R"({"goal": "h", "sol1": "a", "sol2": "b"})");
  EXPECT_NE(error_of("piqa").find("labels of PIQA"), std::string::npos);
  write("piqa_valid_labels.txt", "1\n0\n");
  const auto task = load("piqa");
  EXPECT_EQ(prompt(*task), "Question: g\nAnswer:");
  EXPECT_EQ(task->requests(0)[0].continuation, " a ");
  EXPECT_EQ(score(*task, {-1, -2})[0], 0);
  write("piqa_valid_labels.txt", "1\n");
  EXPECT_NE(error_of("piqa").find("holds 1 labels"), std::string::npos);
}

TEST_F(Tasks, WinograndeScoresWhatFollowsTheBlank) {
  write("winogrande.jsonl",
        R"({"sentence": "The cup is in the _ since it is small. ", "option1": "box", "option2": "bag", "answer": "2"})");
  const auto task = load("winogrande");
  const std::vector<Request> r = task->requests(0);
  EXPECT_EQ(r[0].context, "The cup is in the box");
  EXPECT_EQ(r[1].context, "The cup is in the bag");
  EXPECT_EQ(r[1].continuation, " since it is small.");
  EXPECT_EQ(score(*task, {-2, -1}), std::vector<double>{1});
}

TEST_F(Tasks, LambadaSplitsAtTheLastSpace) {
  write("lambada_openai.jsonl", R"({"text": "the last\nword is\nhere"})");
  const auto task = load("lambada_openai");
  EXPECT_EQ(prompt(*task), "the last\nword");
  EXPECT_EQ(task->requests(0)[0].continuation, " is\nhere");
  write("lambada_test_plain_text.txt", "one two\r\n\nthree four\n");
  EXPECT_EQ(load("lambada_standard")->size(), 2);
}

TEST_F(Tasks, WikitextPagesAndTheirText) {
  write("wiki.test.raw", " \n = One = \n \n In 1 @,@ 000 ( a ) , he said \" x \" ; s ' \n = = Part = = \n it 's \n = Two = \n end\n");
  const auto task = load("wikitext");
  ASSERT_EQ(task->size(), 2);  // what is before the first title is white space
  EXPECT_EQ(prompt(*task), " = One =\n\nIn 1,000 (a), he said \"x\"; s'== Part ==\nit's ");  // by lm-evaluation-harness
  const std::vector<double> row = task->score(0, std::vector<Response>(1));
  const std::string page = " = One = \n \n In 1 @,@ 000 ( a ) , he said \" x \" ; s ' \n = = Part = = \n it 's ";
  EXPECT_EQ(row[2], static_cast<double>(page.size()));
  EXPECT_EQ(row[1], 28);
}

TEST_F(Tasks, LossByPosition) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += static_cast<char>('a' + i % 26);
  write("text.txt", text);
  const auto task = load("positions:" + (folder_ / "text.txt").string() + "@10");
  EXPECT_EQ(task->size(), 3);  // of 31 tokens with BOS
  EXPECT_EQ(task->requests(0)[0].ids.front(), 256);
  Response r;
  r.each = std::vector<float>(9, -2);
  EXPECT_EQ(task->score(0, std::vector{r}), std::vector<double>{2});
  EXPECT_NE(error_of("positions:" + (folder_ / "text.txt").string() + "@64").find("fewer than one sequence"), std::string::npos);
}

TEST_F(Tasks, RecallPrompts) {
  write("based_fda.jsonl", R"({"text": "Some text. The value of it Device Name: x. Device name:", "key": "device Name", "value": "Abc"})"
                           "\n"
                           R"({"text": "t", "key": "k", "value": "v"})");
  const auto fda = load("based_fda");
  EXPECT_EQ(fda->size(), 1);
  EXPECT_EQ(fda->dropped(), 1);  // answers of one character
  EXPECT_EQ(prompt(*fda), "Some text. The value of it Device Name: x. . Device Name:");
  Response r;
  r.text = "It is ABC";
  EXPECT_EQ(fda->score(0, std::vector{r}), std::vector<double>{1});
  r.text = "It is AB";
  EXPECT_EQ(fda->score(0, std::vector{r}), std::vector<double>{0});
  write("based_swde.jsonl", R"({"text": "\nPage. \n\nSummary of information above...x", "key": "color", "value": "red"})");
  EXPECT_EQ(prompt(*load("based_swde")), "Page. Color:");
  write("based_squad.jsonl", R"({"text": " A passage. The city is ", "value": "Rome"})");
  EXPECT_EQ(prompt(*load("based_squad")), "A passage. The city is");
  write("based_nq_2048.jsonl", R"({"context": "A passage. He was born in", "question": " He was born in ", "answers": ["Rome"]})");
  EXPECT_EQ(prompt(*load("based_nq_2048")), "A passage. He was born in");
  write("based_triviaqa.jsonl", R"({"context": "[DOC] [TLE] A title. [PAR] Text", "question": "It is", "answers": ["x", "Text"]})");
  EXPECT_EQ(prompt(*load("based_triviaqa")), "A title.  Text. It is");
  const Request request = fda->requests(0)[0];
  EXPECT_FALSE(request.bos);
  EXPECT_EQ(request.max_tokens, 48);
  EXPECT_EQ(request.stop, std::vector<std::string>{"\n"});
}

// A byte is a token: 2,000 tokens are kept, 1,000 of them before the answer.
TEST_F(Tasks, RecallCutsAroundTheAnswer) {
  const auto prompt_with = [&](size_t before, const std::string& answer, size_t after) {
    const std::string text = std::string(before, 'b') + answer + std::string(after, 'a');
    write("based_squad.jsonl", Json{{"text", text}, {"value", "ANSWER"}}.dump());
    return prompt(*load("based_squad"));
  };
  EXPECT_EQ(prompt_with(900, "answer", 3000), std::string(900, 'b') + "answer" + std::string(1094, 'a'));
  EXPECT_EQ(prompt_with(1500, "answer", 3000), std::string(1000, 'b') + "answer" + std::string(994, 'a'));
  EXPECT_EQ(prompt_with(1500, "answer", 10), std::string(1000, 'b') + "answer" + std::string(10, 'a'));
  EXPECT_EQ(prompt_with(1500, "", 2000), std::string(1001, 'a'));  // not found: the last of it
}

TEST_F(Tasks, ErrorsNameTheFileItsHomeAndTheLine) {
  std::string error = error_of("based_swde");
  EXPECT_NE(error.find("based_swde.jsonl"), std::string::npos);
  EXPECT_NE(error.find("hazyresearch/based-swde-v2"), std::string::npos);
  write("winogrande.jsonl",
        "{\"sentence\": \"a _ b\", \"option1\": \"x\", \"option2\": \"y\", \"answer\": \"1\"}\n{\"sentence\": \"none\"}\n");
  EXPECT_NE(error_of("winogrande").find("line 2"), std::string::npos);
  for (const char* row :
       {"{", "[]", "{\"query\": 3}", "{\"query\": \"q\", \"choices\": [\"a\"], \"gold\": 0}",
        "{\"query\": \"q\", \"choices\": [\"a\", \"b\"], \"gold\": 2}", "{\"query\": \"q\", \"choices\": [\"a\", \"\"], \"gold\": 0}",
        "{\"question\": \"q\", \"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\", \"B\"]}, \"answerKey\": \"C\"}"}) {
    write("arc_challenge.jsonl", row);
    EXPECT_NE(error_of("arc_challenge").find("line 1"), std::string::npos) << row;
  }
  write("arc_challenge.jsonl", "");
  EXPECT_NE(error_of("arc_challenge").find("is empty"), std::string::npos);
  write("hellaswag.jsonl.zst", "no zstd");
  EXPECT_NE(error_of("hellaswag").find("is damaged"), std::string::npos);
}

TEST(TaskNames, GroupsAndMistakes) {
  const auto names = [](const std::vector<std::string>& words) {
    std::vector<std::string> all;
    for (const TaskName& name : parse_tasks(words)) all.push_back(name.text());
    return all;
  };
  EXPECT_EQ(names({"mc", "piqa"}), (std::vector<std::string>{"arc_easy", "arc_challenge", "hellaswag", "piqa", "winogrande"}));
  EXPECT_EQ(names({"paper"}).size(), 13u);
  EXPECT_EQ(names({"positions:a:b.txt@64", "positions:x"}), (std::vector<std::string>{"positions:a:b.txt@64", "positions:x@32768"}));
  for (const char* wrong : {"arc_eazy", "arc_easy:x", "text", "arc_easy@5", "positions:x@", "positions:x@-1", ""}) {
    EXPECT_THROW(parse_tasks({wrong}), std::invalid_argument) << wrong;
  }
}

}  // namespace
}  // namespace cyfa::test
