// cyfa init: a checkpoint with freshly drawn parameters.
#include <iostream>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/op_case.h"
#include "apps/output.h"
#include "cyfa/data/tokenizer.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string config, folder, tokenizer;
  std::string dtype = "fp32";
  uint64_t seed = 42;
};

int run_init(const Options& options) {
  CausalLM model(ModelConfig::read(options.config));
  if (!options.tokenizer.empty()) check_vocabulary(*load_tokenizer(options.tokenizer), model.config());
  model.initialise(options.seed, parse_dtype(options.dtype));
  {
    const WriteGuard guard;
    save_checkpoint(model, options.folder);
    if (!options.tokenizer.empty() && options.tokenizer != "bytes") {
      std::filesystem::copy_file(options.tokenizer, std::filesystem::path(options.folder) / "tokenizer.model");
    }
  }
  std::cout << text("%s: %.1f million parameters in %s\n", options.folder.c_str(), static_cast<double>(model.table().numel()) * 1e-6,
                    options.dtype.c_str());
  return kDone;
}

}  // namespace

void add_init(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("init", "Write a checkpoint with freshly drawn parameters.");
  auto options = std::make_shared<Options>();
  command->add_option("config", options->config, "Config file")->required()->type_name("FILE");
  command->add_option("folder", options->folder, "New checkpoint")->required()->type_name("DIR");
  command->add_option("--seed", options->seed, "The same seed gives the same parameters")->capture_default_str();
  command->add_option("--dtype", options->dtype, "Type of the parameters")->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "SentencePiece model to put beside it as tokenizer.model")->type_name("FILE");
  command->callback([&action, options] { action = [options] { return run_init(*options); }; });
}

}  // namespace cyfa::app
