// cyfa train: trains a model on prepared text, as a recipe says.
#include <unistd.h>

#include <iostream>
#include <sstream>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/machine.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/provided.h"
#include "apps/threads.h"
#include "apps/timing.h"
#include "cyfa/data/batches.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/train/trainer.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string recipe, folder;
  std::vector<std::string> assignments;
  bool resume = false, quiet = false;
};

BatchSource source_of(const TokenData& data, const Recipe& recipe, bool shuffle) {
  BatchOptions options;
  options.T = recipe.context;
  options.B = recipe.batch / recipe.accumulate;
  options.seed = recipe.seed;
  options.shuffle = shuffle;
  options.reset_documents = recipe.reset_documents;
  return [batches = std::make_shared<Batches>(data, options), T = recipe.context, packed = recipe.reset_documents](int64_t index) {
    const Batch batch = batches->at(index);
    return TrainBatch{batch.ids.narrow(1, 0, T), batch.ids.narrow(1, 1, T), packed ? batch.cu_seqlens : std::nullopt};
  };
}

// Progress: on a terminal a line that overwrites itself, elsewhere one line per logged step.
class Screen {
 public:
  Screen(const Recipe& recipe, double flops, bool quiet)
      : recipe_(recipe), flops_(flops), terminal_(isatty(STDOUT_FILENO) == 1), quiet_(quiet) {
    // The machine's peak, measured with plain matrix products.
    const at::Device device = parse_device(recipe.device);
    const auto options = at::TensorOptions(device).dtype(recipe.dtype == "bf16" ? at::kBFloat16 : at::kFloat);
    const int64_t n = device.is_cpu() ? 512 : 8192;
    const at::Tensor a = at::ones({n, n}, options), b = at::ones({n, n}, options);
    const std::vector<Task> tasks = {{[&] { at::mm(a, b); }}};
    peak_ = 2.0 * std::pow(static_cast<double>(n), 3) / measure(tasks, 8, device)[0].p10;
  }

  void step(const Json& row) {
    if (quiet_) return;
    const auto number = [&](const char* key) { return row.at(key).get<double>(); };
    const bool logged = row.at("step").get<int64_t>() % recipe_.log_every == 0 || row.contains("eval_loss");
    if (!terminal_ && !logged) return;
    const double rate = number("tokens_per_s");
    std::string line =
        text("step %6lld/%lld  loss %.4f  norm %.3f  rate %.2e  %.0f tokens/s  %.0f%% of peak  %s left",
             static_cast<long long>(row.at("step").get<int64_t>()), static_cast<long long>(recipe_.steps), number("loss"),
             number("grad_norm"), number("rate"), rate, 100 * rate * flops_ / peak_, duration(number("seconds_left")).c_str());
    if (row.contains("eval_loss")) line += text("  validation %.4f", number("eval_loss"));
    std::cout << (terminal_ ? "\r\033[K" : "") << line << (terminal_ && !logged ? "" : "\n") << std::flush;
  }
  void note(const std::string& note) const {
    if (!quiet_) std::cout << (terminal_ ? "\r\033[K" : "") << note << '\n' << std::flush;
  }

 private:
  static std::string duration(double seconds) {
    const auto s = static_cast<long long>(seconds);
    return s >= 3600 ? text("%lldh%02lldm", s / 3600, s / 60 % 60) : text("%lldm%02llds", s / 60, s % 60);
  }

  Recipe recipe_;
  double flops_;  // per token, forward and backward
  double peak_ = 1;
  bool terminal_, quiet_;
};

int run_train(const Options& options) {
  Recipe recipe = options.resume           ? Recipe::read(fs::path(options.folder) / "recipe.toml")
                  : options.recipe.empty() ? Recipe()
                                           : Recipe::read(recipe_path(options.recipe));
  for (const std::string& assignment : options.assignments) recipe.set(assignment);
  recipe.check();
  if (recipe.data.empty()) throw std::invalid_argument("recipe: data is empty, wanted a folder made by `cyfa prepare`");
  if (recipe.threads > 0) use_threads(recipe.threads, "threads in the recipe");

  const TokenData data = TokenData::open(recipe.data);
  std::optional<TokenData> validation;
  if (!recipe.validation.empty()) validation = TokenData::open(recipe.validation);
  RunFolder folder(options.folder, options.resume);
  std::optional<RunCheckpoint> from;
  if (options.resume && !folder.checkpoints().empty()) from = folder.checkpoints().back();

  const at::Device device = parse_device(recipe.device);
  const LoadOptions load{at::kFloat, device, true};
  const fs::path start = from ? from->path : model_path(recipe.model);
  const bool checkpoint = fs::is_directory(start);
  CausalLM model = checkpoint ? load_checkpoint(start, load) : CausalLM(ModelConfig::read(start));
  if (!checkpoint) model.initialise(recipe.seed, at::kFloat, device);
  if (data.vocab_size() > model.config().vocab_size) {
    throw io::FileError(recipe.data, "has " + std::to_string(data.vocab_size()) + " tokens in its vocabulary, the model " +
                                         std::to_string(model.config().vocab_size));
  }

  Trainer trainer(model, recipe, source_of(data, recipe, true), validation ? source_of(*validation, recipe, false) : BatchSource(),
                  &folder);
  folder.write_recipe(recipe);
  folder.write_manifest({{"seed", recipe.seed},
                         {"commit", commit()},
                         {"date", utc_date()},
                         {"machine", machine_name(device)},
                         {"torch", runtime_torch()},
                         {"engine", trainer.engine().name()},
                         {"engine_notes", trainer.engine().notes()},
                         {"parameters", model.table().numel()},
                         {"data", text("%016llx", static_cast<unsigned long long>(data.hash()))},
                         {"data_tokens", data.tokens()},
                         {"tokenizer", data.tokenizer()},
                         {"config", model.config().json}});
  if (from) {
    trainer.resume(*from);
    folder.drop_metrics_after(from->step);
  } else if (checkpoint && fs::exists(fs::path(recipe.model) / kOptimizerFile)) {
    RunCheckpoint other{recipe.model, 0, std::nullopt};  // another run's: keeps its optimizer state, restarts the step count
    trainer.resume(other);
  }
  Screen screen(recipe, 3 * model.forward_flops_per_token(), options.quiet);
  screen.note(text("%s: %.1f million parameters, %lld tokens of data, %lld steps of %lld tokens%s", options.folder.c_str(),
                   static_cast<double>(model.table().numel()) * 1e-6, static_cast<long long>(data.tokens()),
                   static_cast<long long>(recipe.steps), static_cast<long long>(recipe.batch * recipe.context),
                   from ? text(", resuming after step %lld", static_cast<long long>(from->step)).c_str() : ""));
  const GracefulStop stop;
  trainer.on_step = [&](const Json& row) { screen.step(row); };
  trainer.on_note = [&](const std::string& note) { screen.note(note); };
  trainer.should_stop = [&] { return stop.requested(); };
  const int64_t done = trainer.run();
  if (done < recipe.steps) {
    screen.note(
        text("stopped after step %lld; continue with: cyfa train --resume %s", static_cast<long long>(done), options.folder.c_str()));
    return kStopped;
  }
  screen.note("done: " + folder.checkpoints().back().path.string());
  return kDone;
}

std::string value_text(const Recipe& recipe, const RecipeKey& key) {
  return std::visit(
      [&](auto member) {
        std::ostringstream out;
        out << std::boolalpha << recipe.*member;
        return out.str();
      },
      key.member);
}

std::string key_help() {
  std::string out = "Recipe keys, in the recipe file or as KEY=VALUE:\n";
  for (const RecipeKey& key : recipe_keys()) {
    const std::string value = value_text(Recipe(), key);
    out += text("  %-16s %s%s\n", key.name, key.about, value.empty() ? "" : (" [default: " + value + "]").c_str());
  }
  return out + "\nExit status: 0 done, 2 bad input or an error (the last good checkpoint stays), 3 stopped by a signal after saving.";
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("train", "Train a model on text that `cyfa prepare` has turned into tokens.");
  auto options = std::make_shared<Options>();
  command->add_option("folder", options->folder, "Folder of the run, created if it does not exist")->required()->type_name("DIR");
  command->add_option("assignments", options->assignments, "Recipe values that take precedence over the recipe file's")
      ->type_name("KEY=VALUE");
  command->add_option("-r,--recipe", options->recipe, "Recipe file (TOML), such as those in recipes/")
      ->type_name("FILE")
      ->default_str("the keys' defaults");
  command->add_flag("--resume", options->resume,
                    "Continue from the run's last checkpoint; on a CPU the result is bit for bit that of an uninterrupted run");
  command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
  command->footer(key_help());
  command->callback([&action, options] { action = [options] { return run_train(*options); }; });
}

}  // namespace cyfa::app
