// cyfa init: writes a checkpoint with random parameters.
#include <iostream>

#include "apps/amounts.h"
#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/provided.h"
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
  CausalLM model(ModelConfig::read(config_path(options.config)));
  if (!options.tokenizer.empty()) check_vocabulary(*load_tokenizer(options.tokenizer), model.config());
  model.initialise(options.seed, parse_dtype(options.dtype));
  {
    const WriteGuard guard;
    save_checkpoint(model, options.folder, kShardBytes, [&](const std::filesystem::path& folder) {  // before the folder appears
      if (options.tokenizer.empty() || options.tokenizer == "bytes") return;
      std::filesystem::copy_file(options.tokenizer, folder / "tokenizer.model");
    });
  }
  std::cout << text("%s: %s parameters in %s\n", options.folder.c_str(), count_text(static_cast<double>(model.table().numel())).c_str(),
                    options.dtype.c_str());
  return kDone;
}

}  // namespace

void add_init(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("init", "Write a checkpoint with random parameters.");
  auto options = std::make_shared<Options>();
  command->add_option("model", options->config, "Name of a model that comes with the program, or a config file")
      ->required()
      ->type_name("MODEL");
  command->add_option("folder", options->folder, "Checkpoint directory to create")->required()->type_name("DIR");
  command->add_option("--seed", options->seed, "Random seed; the same seed gives the same parameters")->capture_default_str();
  add_dtype(command, &options->dtype, "the weights", {"fp32", "bf16"});
  command->add_option("--tokenizer", options->tokenizer, "SentencePiece model file to copy into the checkpoint as tokenizer.model")
      ->type_name("FILE");
  command->callback([&action, options] { action = [options] { return run_init(*options); }; });
}

}  // namespace cyfa::app
