// LongBench: prompts, the cut in the middle, scores, files.
#include "cyfa/eval/longbench.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cyfa/eval/task.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/hash.h"
#include "cyfa/model/config.h"

namespace cyfa::eval {
namespace {

const LongBenchKind& kind(const std::string& name) {
  for (const LongBenchKind& k : longbench_kinds()) {
    if (name == k.name) return k;
  }
  throw std::invalid_argument(name);
}

ModelConfig byte_model() {
  return ModelConfig::parse({{"model_type", "cyclic_flow_attention"}, {"hidden_size", 64}, {"num_hidden_layers", 1}, {"vocab_size", 258}});
}

// The prompts' hashes, made from dataset2prompt.json of THUDM/LongBench with {context} and {input} as they stand there.
TEST(LongBench, PromptsToTheCharacter) {
  EXPECT_EQ(longbench_prompt(kind("trec"), "CONTEXT", "INPUT"),
            "Please determine the type of the question below. Here are some examples of questions.\n\nCONTEXT\nINPUT");
  EXPECT_EQ(longbench_prompt(kind("repobench-p"), "{input}", "{context}"),
            "Please complete the code given below. \n{input}{context}Next line of code:\n");
  std::string all;
  int paper = 0;
  for (const LongBenchKind& k : longbench_kinds()) {
    all += std::string(k.name) + "\n" + k.prompt + "\n" + std::to_string(k.new_tokens) + "\n";
    paper += k.paper ? 1 : 0;
  }
  EXPECT_EQ(paper, 14);
  EXPECT_EQ(io::hash64(all), 0U);
}

TEST(LongBench, LongPromptsLoseTheirMiddle) {
  const ByteTokenizer bytes;
  const ModelConfig config = byte_model();
  const Encoder plain(bytes, config, false), with_bos(bytes, config, true);
  int64_t cut = -1;
  EXPECT_EQ(without_middle("0123456789", 10, plain, cut), "0123456789");
  EXPECT_EQ(cut, 0);
  EXPECT_EQ(without_middle("0123456789", 7, plain, cut), "012789");
  EXPECT_EQ(cut, 4);
  EXPECT_EQ(without_middle("0123456789", 10, with_bos, cut), "012356789");  // BOS is one of the first five
  EXPECT_EQ(cut, 1);
}

TEST(LongBench, Scores) {
  const std::vector<std::string> answers = {"a red fox", "a fox"}, classes = {"Date", "City"};
  EXPECT_EQ(longbench_score(kind("qasper"), "Fox.", answers, {}), 1);
  EXPECT_EQ(longbench_score(kind("triviaqa"), "\n\nfox\nwolf", answers, {}), 1);
  EXPECT_LT(longbench_score(kind("hotpotqa"), "\n\nfox\nwolf", answers, {}), 1);
  EXPECT_EQ(longbench_score(kind("trec"), "\nDate\nCity", std::vector<std::string>{"Date"}, classes), 1);
  EXPECT_EQ(longbench_score(kind("passage_count"), "7", std::vector<std::string>{"7"}, {}), 1);
}

// The task from a file, and files that are not right.
TEST(LongBench, Files) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "longbench_files";
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, const std::string& text) { std::ofstream(folder / name) << text; };
  const ByteTokenizer bytes;
  const ModelConfig config = byte_model();
  const Encoder encoder(bytes, config, false);
  DataFiles files(folder);
  const auto load = [&](const std::string& name, int64_t max_length) {
    return load_task(parse_tasks({name}).at(0), {.files = files, .encoder = encoder, .max_length = max_length});
  };
  write("trec.jsonl", R"({"context": "CCCCCCCCCC", "input": "Type:", "answers": ["Date"], "all_classes": ["Date", "City"]})");
  const std::unique_ptr<Task> task = load("longbench_trec", 64 + 40);
  ASSERT_EQ(task->size(), 1);
  const std::vector<Request> requests = task->requests(0);
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_TRUE(requests[0].context.starts_with("Please determine the"));
  EXPECT_EQ(requests[0].context.size(), 40U);
  EXPECT_TRUE(requests[0].context.ends_with("CCCC\nType:"));
  EXPECT_GT(requests[0].truncated, 0);
  EXPECT_EQ(requests[0].max_tokens, 64);
  Response response;
  response.text = "\nDate or\nCity";
  EXPECT_EQ(task->score(0, std::vector<Response>{response}), std::vector<double>{1});
  EXPECT_EQ(task->metrics(Scores(task->columns(), {{1}})).at(0).value, 100);
  EXPECT_EQ(load("longbench_trec@20", 4096)->requests(0)[0].context.size(), 20U);
  EXPECT_THROW(load("longbench_trec", 64), std::invalid_argument);

  EXPECT_THROW(load("longbench_lcc", 4096), io::FileError);  // no such file
  for (const char* line :
       {"", "{}", "[1]", "{\"context\": 3}", R"({"context": "c", "input": "i", "answers": []})",
        R"({"context": "c", "input": "i", "answers": [7]})", R"({"context": "c", "input": "i", "answers": ["no number"]})"}) {
    write("passage_retrieval_en.jsonl", std::string(line) + "\n");
    EXPECT_THROW(load("longbench_passage_retrieval_en", 4096), io::FileError) << line;
  }
}

}  // namespace
}  // namespace cyfa::eval
