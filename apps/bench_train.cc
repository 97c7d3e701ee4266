// cyfa bench train: tokens a second of whole training steps: forward, backward, clipping, AdamW.
#include <ATen/Parallel.h>

#include <iostream>
#include <optional>

#include "apps/commands.h"
#include "apps/kernel_table.h"
#include "apps/machine.h"
#include "apps/op_case.h"
#include "apps/output.h"
#include "apps/timing.h"
#include "cyfa/train/trainer.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string config, json;
  Recipe recipe;
  int repeats = 5;
  bool kernels = false;
};

int run_train(const Options& options) {
  Recipe recipe = options.recipe;
  if (recipe.threads > 0) at::set_num_threads(static_cast<int>(recipe.threads));
  recipe.model = options.config;
  recipe.steps = options.repeats + (options.kernels ? 2 : 1);
  recipe.warmup = 0;
  const at::Device device = parse_device(recipe.device);
  if (options.kernels && !device.is_cuda()) throw std::invalid_argument("--kernels lists the kernels of a GPU; it needs --device cuda");
  CausalLM model(ModelConfig::read(options.config));
  model.initialise(1, at::kFloat, device);
  at::manual_seed(1);
  const at::Tensor ids = at::randint(0, model.config().vocab_size, {recipe.batch / recipe.accumulate, recipe.context + 1}, at::kLong);
  const TrainBatch batch{ids.narrow(1, 0, recipe.context), ids.narrow(1, 1, recipe.context), std::nullopt};
  Trainer trainer(
      model, recipe, [&](int64_t) { return batch; }, {}, nullptr);
  std::vector<double> seconds;
  double last = 0;
  std::optional<KernelTable> kernels;
  trainer.on_step = [&](const Json& row) {
    const auto now = row.at("seconds").get<double>();
    const auto step = row.at("step").get<int64_t>();
    if (step > 1 && step <= options.repeats + 1) seconds.push_back(now - last);  // the first step also warms up
    last = now;
    if (options.kernels && step == options.repeats + 1) kernels.emplace();
  };
  trainer.run();
  const Timing t = summarise(seconds);
  const auto tokens = static_cast<double>(recipe.batch * recipe.context);
  const Json row = {{"impl", "cyfa"},
                    {"op", "train"},
                    {"model", std::filesystem::path(options.config).stem().string()},
                    {"dtype", recipe.dtype},
                    {"device", recipe.device},
                    {"B", recipe.batch},
                    {"T", recipe.context},
                    {"ms", t.median * 1e3},
                    {"ms_p10", t.p10 * 1e3},
                    {"ms_p90", t.p90 * 1e3},
                    {"repeats", t.repeats},
                    {"tokens_per_s", tokens / t.median},
                    {"parameters", model.table().numel()},
                    {"peak_memory_mb", static_cast<double>(peak_resident_bytes()) * 1e-6},
                    {"threads", at::get_num_threads()},
                    {"commit", commit()},
                    {"date", utc_date()},
                    {"machine", cpu_model()}};
  if (options.json != "-") {
    std::cout << text("%s %s  B%lld T%lld: %.0f ms a step (p10 %.0f, p90 %.0f), %.0f tokens/s\n", row["model"].get<std::string>().c_str(),
                      recipe.dtype.c_str(), static_cast<long long>(recipe.batch), static_cast<long long>(recipe.context), t.median * 1e3,
                      t.p10 * 1e3, t.p90 * 1e3, tokens / t.median);
  }
  if (kernels) kernels->print("one step");
  if (!options.json.empty()) write_rows(options.json, Json::array({row}));
  return kDone;
}

}  // namespace

void add_bench_train(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("train", "Time whole training steps of a config on random tokens.");
  auto options = std::make_shared<Options>();
  Recipe& r = options->recipe;
  r.batch = 2;
  command->add_option("config", options->config, "Config file")->required()->type_name("FILE");
  command->add_option("--B", r.batch, "Sequences a step")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--T", r.context, "Tokens a sequence")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--accumulate", r.accumulate, "Parts of a step")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_flag("--recompute", r.recompute, "Activation checkpointing");
  command->add_option("--dtype", r.dtype, "Compute type of the matrices")->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  command->add_option("--device", r.device, "Where to run")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  command->add_option("--threads", r.threads, "0: one per core")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_option("--repeats", options->repeats, "Timed steps")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_flag("--kernels", options->kernels, "Print the GPU's kernels in one more step, by time (with --device cuda)");
  command->add_option("--json", options->json, "The row also as JSON; - prints it instead of text")->type_name("FILE");
  command->callback([&action, options] { action = [options] { return run_train(*options); }; });
}

}  // namespace cyfa::app
