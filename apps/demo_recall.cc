// cyfa demo recall: a tiny model learns associative recall before your eyes, and shows its clock and its slots.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/output.h"
#include "cyfa/train/recall.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string png;
  int64_t pairs = 8, steps = 800;
  double rate = 3e-3;
  uint64_t seed = 1;
};

constexpr double kEnough = 0.99;

int run_demo(const Options& options) {
  RecallTask task;
  task.pairs = options.pairs;
  task.keys = task.values = std::max<int64_t>(32, 2 * options.pairs);
  task.seed = options.seed;
  Recipe recipe;
  recipe.model = "recall";
  recipe.steps = options.steps;
  recipe.batch = task.batch;
  recipe.context = task.context();
  recipe.rate = options.rate;
  recipe.warmup = 50;
  recipe.seed = options.seed;
  CausalLM model(ModelConfig::parse({{"model_type", "cyclic_flow_attention"}, {"hidden_size", 64}, {"num_hidden_layers", 2}, {"num_heads", 2},
                                     {"head_dim", 32}, {"num_slots", 32}, {"vocab_size", task.vocab_size()}, {"intermediate_size", 128}}));
  model.initialise(options.seed);
  std::cout << text("keys with values are shown once, then asked for: %lld pairs, %lld keys, %lld values; %.0f thousand parameters\n",
                    static_cast<long long>(task.pairs), static_cast<long long>(task.keys), static_cast<long long>(task.values),
                    static_cast<double>(model.table().numel()) * 1e-3);
  Trainer trainer(model, recipe, [task](int64_t i) { return task.at(i); }, {}, nullptr);
  double accuracy = 0;
  trainer.on_step = [&](const Json& row) {
    const auto step = row.at("step").get<int64_t>();
    if (step % 50 != 0) return;
    accuracy = recall_accuracy(model, task, 2);
    const auto bar = static_cast<size_t>(accuracy * 40);
    std::cout << text("step %4lld  loss %.3f  right %5.1f%%  ", static_cast<long long>(step), row.at("loss").get<double>(), 100 * accuracy)
              << std::string(bar, '#') << '\n' << std::flush;
  };
  trainer.should_stop = [&] { return accuracy >= 0.998; };
  const int64_t steps = trainer.run();
  accuracy = recall_accuracy(model, task, 20);
  std::cout << text("after %lld steps %.2f%% of %lld questions are answered rightly\n", static_cast<long long>(steps), 100 * accuracy,
                    static_cast<long long>(20 * task.batch * task.pairs));
  return accuracy >= kEnough ? kDone : kCheckFailed;
}

}  // namespace

void add_demo(CLI::App& app, Action& action) {
  CLI::App* demo = app.add_subcommand("demo", "Small trainings to watch.");
  demo->require_subcommand(1);
  CLI::App* command = demo->add_subcommand("recall", "Train a tiny model on associative recall.");
  auto options = std::make_shared<Options>();
  command->add_option("--pairs", options->pairs, "Keys with values in a sequence")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--steps", options->steps, "Steps at most")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--rate", options->rate, "Learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--seed", options->seed, "Of the parameters and of the task")->capture_default_str();
  command->footer("Exit status: 0 at least 99% right, 1 less.");
  command->callback([&action, options] { action = [options] { return run_demo(*options); }; });
}

}  // namespace cyfa::app
