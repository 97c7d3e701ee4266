// cyfa demo recall: trains a tiny model on associative recall, then draws its clock and its slots.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/options.h"
#include "apps/output.h"
#include "cyfa/io/heatmap.h"
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

// Decodes one sequence token by token: the clock increments of every head, and the slot contents of one of them.
std::vector<io::Heatmap> pictures(const CausalLM& model, const RecallTask& task) {
  const at::NoGradGuard no_grad;
  const Weights w = model.weights();
  const at::Tensor ids = task.at(0).inputs.narrow(0, 0, 1);
  const auto layers = static_cast<size_t>(model.config().backbone.layers);
  ModelState state = model.initial_state(1);
  std::vector<std::vector<at::Tensor>> clocks(layers), energies(layers);
  for (int64_t t = 0; t < ids.size(1); ++t) {
    model.step(w, ids.select(1, t), state);
    for (size_t layer = 0; layer < layers; ++layer) {
      const std::optional<MemoryView> view = model.view(state, layer);
      clocks[layer].push_back(view->clock[0].clone());
      energies[layer].push_back(view->energy[0].clone());
    }
  }
  std::vector<at::Tensor> rows;
  for (size_t layer = 0; layer < layers; ++layer) {
    const at::Tensor clock = at::stack(clocks[layer], 1);  // [H, T]
    rows.push_back(at::cat({clock.narrow(1, 0, 1), clock.diff(1, 1)}, 1));
  }
  const at::Tensor delta = at::cat(rows);  // [layers * H, T]
  // Shows the head whose clock varies most.
  const auto liveliest = delta.std(1).argmax().item<int64_t>();
  const auto H = rows[0].size(0);
  const at::Tensor energy = at::stack(energies[static_cast<size_t>(liveliest / H)], 2)[liveliest % H];  // [m, T]
  const at::Tensor held = (energy / energy.amax(0, true).clamp_min(1e-300)).sqrt();
  const auto map = [](const std::string& title, const std::string& row, const at::Tensor& x, double high) {
    const at::Tensor values = x.to(at::kDouble).contiguous();
    io::Heatmap h;
    h.title = title;
    h.row_label = row;
    h.column_label = "token: first the pairs, then the questions";
    h.rows = x.size(0);
    h.columns = x.size(1);
    h.values.assign(values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
    h.low = 0;
    h.high = high;
    return h;
  };
  return {
      map("clock increments of all heads, layer by layer", "head", delta, 1.0),
      map(text("what the slots hold: layer %lld, head %lld", static_cast<long long>(liveliest / H), static_cast<long long>(liveliest % H)),
          "slot, newest first", held, 1.0)};
}

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
  CausalLM model(ModelConfig::parse({{"model_type", "cyclic_flow_attention"},
                                     {"hidden_size", 64},
                                     {"num_hidden_layers", 2},
                                     {"num_heads", 2},
                                     {"head_dim", 32},
                                     {"num_slots", 32},
                                     {"vocab_size", task.vocab_size()},
                                     {"intermediate_size", 128}}));
  model.initialise(options.seed);
  std::cout << text(
      "the model sees %lld key-value pairs once, then answers for each key: %lld keys, %lld values; %.0f thousand parameters\n",
      static_cast<long long>(task.pairs), static_cast<long long>(task.keys), static_cast<long long>(task.values),
      static_cast<double>(model.table().numel()) * 1e-3);
  Trainer trainer(
      model, recipe, [task](int64_t i) { return task.at(i); }, {}, nullptr);
  double accuracy = 0;
  trainer.on_step = [&](const Json& row) {
    const auto step = row.at("step").get<int64_t>();
    if (step % 50 != 0) return;
    accuracy = recall_accuracy(model, task, 2);
    const auto bar = static_cast<size_t>(accuracy * 40);
    std::cout << text("step %4lld  loss %.3f  correct %5.1f%%  ", static_cast<long long>(step), row.at("loss").get<double>(),
                      100 * accuracy)
              << std::string(bar, '#') << '\n'
              << std::flush;
  };
  trainer.should_stop = [&] { return accuracy >= 0.998; };
  const int64_t steps = trainer.run();
  accuracy = recall_accuracy(model, task, 20);
  std::cout << text("after %lld steps %.2f%% of %lld answers are correct\n", static_cast<long long>(steps), 100 * accuracy,
                    static_cast<long long>(20 * task.batch * task.pairs));
  const std::vector<io::Heatmap> maps = pictures(model, task);
  io::TextStyle style = io::terminal_style(STDOUT_FILENO);
  style.height = 16;
  for (const io::Heatmap& map : maps) std::cout << '\n' << io::heatmap_text(map, style);
  if (!options.png.empty()) {
    const WriteGuard guard;
    io::write_png(options.png, io::draw_heatmaps(maps));
    std::cout << "\npicture written to " << options.png << '\n';
  }
  return accuracy >= kEnough ? kDone : kCheckFailed;
}

}  // namespace

void add_demo(CLI::App& app, Action& action) {
  CLI::App* demo = app.add_subcommand("demo", "Train small models to watch them learn.");
  demo->require_subcommand(1);
  CLI::App* command = demo->add_subcommand("recall", "Train a tiny model to recall values by their keys.");
  auto options = std::make_shared<Options>();
  command->add_option("--pairs", options->pairs, "Key-value pairs per sequence")->check(CLI::Range(1, 1024))->capture_default_str();
  command->add_option("--steps", options->steps, "Largest number of training steps; training ends earlier at 99.8% correct")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--rate", options->rate, "Learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--png", options->png, "File to which a picture of the clock and the slots is written")->type_name("FILE");
  add_seed(command, &options->seed, "Random seed of the parameters and of the task");
  command->footer("Exit status: 0 at least 99% of the answers are correct, 1 fewer, 2 bad input or an error.");
  command->callback([&action, options] { action = [options] { return run_demo(*options); }; });
}

}  // namespace cyfa::app
