#include "apps/examples.h"

#include <algorithm>
#include <string>
#include <vector>

#include "apps/output.h"

namespace cyfa::app {
namespace {

struct Example {
  const char* command;    // whose help shows it; "" for the program's
  const char* arguments;  // behind "cyfa COMMAND"
  const char* meaning;
};

constexpr Example kExamples[] = {
    {"", "doctor", "what this build and this machine can do, with a self-check"},
    {"", "models", "the models that come with the program"},
    {"", "init cyfa-bytes-2m DIR", "write a checkpoint with random parameters"},
    {"", "generate DIR -p \"Once upon a time\"", "continue a text with it"},
    {"", "prepare data texts/", "turn text files into tokens for training"},
    {"", "train run -r bytes data=data", "train a model on them, as the recipe bytes says"},
    {"", "bench op --pass both", "time one layer's operator beside a plain matrix product"},
    {"", "show clock -o clock.png", "how writes move through the slots"},

    {"doctor", "", "this build and this machine"},
    {"doctor", "cyfa-bytes-2m", "which engine decodes and which trains this model here"},
    {"doctor", "--json report.json", "the report for a bug report, also as a file"},

    {"verify op", "tests/vectors/*.safetensors", "every backend that takes the inputs"},
    {"verify op", "tests/vectors/op_plain.safetensors --backend portable --dtype bf16", "one backend with q, k and v in bf16"},

    {"verify model", "tests/vectors/model_tiny", "logits, greedy text, losses and gradients"},
    {"verify model", "tests/vectors/model_tiny --all --dtype fp64", "every gradient, in double precision"},

    {"plan", "cyfa-400m", "the paper's smallest run on one node of eight GPUs"},
    {"plan", "cyfa-1.4b --gpus 64 --context 1000000 --batch-tokens 8000000", "long sequences, cut over GPUs"},

    {"bench op", "", "forward and backward of one layer of the 400M model"},
    {"bench op", "--op step --B 64", "one decode step of 64 sequences"},
    {"bench op", "--T 512 --dtype bf16 --pass forward", "a shorter sequence, in bf16, without gradients"},

    {"bench decode", "cyfa-bytes-2m --B 1 8 64", "three batch sizes of a model with random parameters"},
    {"bench decode", "DIR --dtype fp32", "a checkpoint in fp32"},
    {"bench decode", "cyfa-bytes-2m --B 1 --contexts 0 1000", "a token after none and after 1000 others"},

    {"bench prefill", "cyfa-bytes-2m --T 64 512", "prompts of two lengths"},
    {"bench prefill", "DIR --T 3000 --chunk 1000", "a checkpoint; three forwards"},

    {"bench load", "DIR", "as for generating: the file is mapped"},
    {"bench load", "DIR --writable", "as for training: the weights are copied"},

    {"bench train", "cyfa-9m --B 2 --T 512", "steps of 1024 tokens"},
    {"bench train", "cyfa-bytes-2m --B 8 --T 256 --repeats 10", "the small model for bytes, ten timed steps"},

    {"bench state", "DIR text.txt --tokens 500", "what a state in bf16 costs on the first 500 tokens of a text"},

    {"show clock", "", "in the terminal"},
    {"show clock", "--slots 15 --tokens 60 -o clock.png", "fewer slots and tokens, also as an image"},

    {"show loss", "run", "the last losses of a training run"},
    {"show loss", "run run -o losses.png", "the losses of two runs in one picture"},

    {"show curves", "run/metrics.jsonl --x step --y grad_norm -o norm.svg", "the norm of the gradient over the steps of a run"},

    {"models", "", "the models that come with the program"},
    {"models", "cyfa-400m kda-400m DIR", "two of them and a checkpoint"},
    {"models", "--kinds", "the model types"},
    {"models", "--describe cyfa-9m", "all that a config means, as JSON"},

    {"init", "cyfa-bytes-2m DIR", "a small model for bytes"},
    {"init", "cyfa-9m DIR --dtype bf16 --seed 7", "another model, in half the memory, with other parameters"},

    {"generate", "DIR -p \"Once upon a time\"", "the most likely continuation"},
    {"generate", "DIR -p \"Once upon a time\" -n 50 -t 0.8 --top-p 0.95 --seed 1", "50 tokens drawn at random"},
    {"generate", "DIR --prompt-lines prompts.txt --json", "a text for each line of a file, as JSON"},

    {"prepare", "data texts/", "all text files of a folder, as bytes"},
    {"prepare", "data books.jsonl --text-field body --shard-tokens 1000000", "JSON lines whose text is called body"},

    {"train", "run -r bytes data=data", "a small model for bytes, in minutes on a laptop"},
    {"train", "run model=cyfa-9m data=data steps=100 batch=4 context=256", "without a recipe file"},
    {"train", "run --resume steps=200", "continue, to step 200"},

    {"eval", "--tasks", "the tasks, and what each needs"},
    {"eval", "DIR arc_easy hellaswag --data data", "two tasks, from files in the folder data"},
    {"eval", "DIR paper --data data -o results", "the paper's tasks; the same command continues an interrupted run"},
    {"eval", "DIR needles --lengths 1024 4096 --limit 100", "RULER's needles in texts of two lengths"},
    {"eval", "DIR text:book.txt positions:book.txt@8192", "perplexity of a text, and its loss by position in long sequences"},

    {"experiment", "--list", "the experiments that come with the program"},
    {"experiment", "mqar --plan", "which runs there would be"},
    {"experiment", "mixers --data data --device cuda --jobs 6", "train all mixers on text, six at a time"},

    {"probe", "DIR text.txt", "tables of what the clock does on a text"},
    {"probe", "DIR text.txt -o probe", "also pictures, and probe/page.html to open in a browser"},
    {"probe", "DIR text.txt --tokens 64 --sequences 4 --held-out 2 --only interventions", "one analysis, of little text"},
    {"probe", "DIR text.txt --tokens 64 --held-out 0 --only gradients", "the norms of gradients, of any model"},

    {"demo recall", "", "eight pairs, at most 800 steps"},
    {"demo recall", "--pairs 4 -o recall.png", "an easier task, also as an image"},
};

std::string examples_of(const std::string& command) {
  std::vector<std::pair<std::string, std::string>> rows;
  size_t width = 0;
  for (const Example& e : kExamples) {
    if (command != e.command) continue;
    std::string line = "cyfa";
    for (const std::string word : {e.command, e.arguments}) line += word.empty() ? "" : " " + word;
    width = std::max(width, line.size());
    rows.emplace_back(line, e.meaning);
  }
  std::string out;
  for (const auto& [line, meaning] : rows) out += text("  %-*s  # %s\n", static_cast<int>(width), line.c_str(), meaning.c_str());
  return out;
}

void add_examples(CLI::App& app, const std::string& command) {
  const std::string examples = examples_of(command);
  if (!examples.empty()) app.footer("Examples:\n" + examples + "\n" + app.get_footer());
  for (CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    add_examples(*child, (command.empty() ? "" : command + " ") + child->get_name());
  }
}

}  // namespace

void add_examples(CLI::App& app) { add_examples(app, ""); }

}  // namespace cyfa::app
