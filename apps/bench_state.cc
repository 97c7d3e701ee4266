// cyfa bench state: the perplexity of a text, decoded token by token with the recurrent state in fp32 and in bf16.

#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/checkpoint_folder.h"
#include "apps/commands.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/threads.h"
#include "cyfa/data/tokenizer.h"
#include "cyfa/engine/engine.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string folder, text, tokenizer, device = "cpu", json;
  int64_t tokens = 4096;
  int threads = 0;
};

int run_state(const Options& options) {
  const at::NoGradGuard no_grad;
  if (options.threads > 0) use_threads(options.threads, "--threads");
  const at::Device device = parse_device(options.device);
  const std::string folder = checkpoint_folder(options.folder);
  CausalLM model = load_checkpoint(folder, {std::nullopt, device, false});
  const auto tokenizer = options.tokenizer.empty() ? checkpoint_tokenizer(folder, model.config()) : load_tokenizer(options.tokenizer);
  std::ifstream in(options.text, std::ios::binary);
  if (!in || std::filesystem::is_directory(options.text)) throw io::FileError(options.text, "cannot be read; wanted a text file");
  std::vector<int64_t> ids = tokenizer->encode(std::string{std::istreambuf_iterator<char>(in), {}});
  if (ids.size() < 2) throw io::FileError(options.text, "holds fewer than two tokens");
  ids.resize(std::min(ids.size(), static_cast<size_t>(options.tokens) + 1));
  const std::unique_ptr<StepEngine> engine = prepare_steps(model);
  const at::Tensor all = at::tensor(ids, at::kLong);
  Json row = {{"op", "state"}, {"model", options.folder}, {"text", options.text}, {"tokens", ids.size() - 1}, {"device", options.device}};
  for (const auto& [name, type] : {std::pair("fp32", at::kFloat), std::pair("bf16", at::kBFloat16)}) {
    ModelState state = model.initial_state(1);
    model.set_state_type(state, type);
    const int64_t bytes = state.bytes();
    double sum = 0;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      const at::Tensor logits = engine->step(all.narrow(0, static_cast<int64_t>(t), 1), state).to(at::kDouble).log_softmax(-1);
      sum -= logits[0][ids[t + 1]].item<double>();
    }
    const double nats = sum / static_cast<double>(ids.size() - 1);
    row[std::string("nats_") + name] = nats;
    if (prints_text(options.json)) {
      std::cout << text("%s state, %.2f MB per sequence: %.5f nats per token, perplexity %.4f over %zu tokens\n", name,
                        static_cast<double>(bytes) * 1e-6, nats, std::exp(nats), ids.size() - 1);
    }
  }
  write_rows(options.json, Json::array({row}));
  return kDone;
}

}  // namespace

void add_bench_state(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("state", "Compare the perplexity of a text with the recurrent state in fp32 and in bf16.");
  auto options = std::make_shared<Options>();
  command->add_option("model", options->folder, "Checkpoint directory")->required()->type_name("DIR");
  command->add_option("text", options->text, "Text file to read")->required()->type_name("FILE");
  command->add_option("--tokens", options->tokens, "Largest number of tokens to predict")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "SentencePiece model file, or the word bytes")
      ->type_name("FILE")
      ->default_str("the checkpoint's own");
  add_device(command, &options->device);
  add_threads(command, &options->threads);
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_state(*options); }; });
}

}  // namespace cyfa::app
