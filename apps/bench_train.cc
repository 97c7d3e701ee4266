// cyfa bench train: times whole training steps (forward, backward, clipping, AdamW), once the first has the plain model's loss.
#include <ATen/Parallel.h>

#include <cmath>
#include <iostream>
#include <optional>

#include "apps/commands.h"
#include "apps/kernel_table.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/provided.h"
#include "apps/threads.h"
#include "apps/timing.h"
#include "cyfa/train/trainer.h"

namespace cyfa::app {
namespace {

// Largest relative difference between the loss of the first step and the plain model's on the same batch of `tokens`. The loss of a model
// with random parameters is close to log(vocab_size) whatever its layers compute, so the limits are tight. In bf16 the rounding errors of
// the tokens average out.
double check_limit(const std::string& dtype, double tokens) { return dtype == "bf16" ? std::max(1e-4, 1e-2 / std::sqrt(tokens)) : 1e-5; }

constexpr int kLeastSteps = 10;  // timed with --repeats 0, which also takes at least a second
constexpr int64_t kMostSteps = 1 << 20;

struct Options {
  std::string config, json;
  Recipe recipe;
  int repeats = 5;
  bool kernels = false;
};

int run_train(const Options& options) {
  Recipe recipe = options.recipe;
  if (recipe.threads > 0) use_threads(recipe.threads, "--threads");
  const std::filesystem::path path = config_path(options.config);
  recipe.model = path.string();
  recipe.steps = options.repeats > 0 ? options.repeats + (options.kernels ? 2 : 1) : kMostSteps;
  recipe.warmup = 0;
  recipe.check();
  const at::Device device = parse_device(recipe.device);
  if (options.kernels && !device.is_cuda()) throw std::invalid_argument("--kernels lists the kernels of a GPU; it needs --device cuda");
  CausalLM model(ModelConfig::read(path));
  model.initialise(1, at::kFloat, device);
  at::manual_seed(1);
  const at::Tensor ids = at::randint(0, model.config().vocab_size, {recipe.batch / recipe.accumulate, recipe.context + 1}, at::kLong);
  const TrainBatch batch{ids.narrow(1, 0, recipe.context), ids.narrow(1, 1, recipe.context), std::nullopt};
  double plain_loss = 0;
  {
    const at::NoGradGuard no_grad;
    const auto compute = recipe.dtype == "bf16" ? std::optional(at::kBFloat16) : std::nullopt;
    plain_loss = model.loss(model.weights(compute), batch.inputs, batch.targets).item<double>();
  }
  reset_gpu_peak(device);
  double loss_error = 0;  // relative, of the first step
  const double limit = check_limit(recipe.dtype, static_cast<double>(batch.inputs.numel()));
  Trainer trainer(
      model, recipe, [&](int64_t) { return batch; }, {}, nullptr);
  std::vector<double> seconds;
  double last = 0, total = 0;
  const auto enough = [&] {
    const auto steps = static_cast<int>(seconds.size());
    return options.repeats > 0 ? steps >= options.repeats : steps >= kLeastSteps && total >= 1;
  };
  std::optional<KernelTable> kernels;
  bool kernels_done = false;
  trainer.on_step = [&](const Json& row) {
    const auto now = row.at("seconds").get<double>();
    if (row.at("step").get<int64_t>() == 1) {  // warms up, and is checked
      loss_error = std::abs(row.at("loss").get<double>() - plain_loss) / std::abs(plain_loss);
      if (!(loss_error <= limit)) throw TrainingError(text("the loss is %.6f", row.at("loss").get<double>()));
    } else if (!enough()) {
      seconds.push_back(now - last);
      total += now - last;
      if (options.kernels && enough()) kernels.emplace();  // records the step that follows
    } else {
      kernels_done = true;
    }
    last = now;
  };
  trainer.should_stop = [&] { return enough() && (!options.kernels || kernels_done); };
  try {
    trainer.run();
  } catch (const TrainingError& e) {
    std::cerr << text("check: %s; the plain model's loss is %.6f, limit %.0e\n", e.what(), plain_loss, limit)
              << "cyfa: error: the check failed, so nothing was timed\n";
    return kCheckFailed;
  }
  const Timing t = summarise(seconds);
  const auto tokens = static_cast<double>(recipe.batch * recipe.context);
  const Json row = {{"impl", "cyfa"},
                    {"op", "train"},
                    {"model", name_of(path)},
                    {"dtype", recipe.dtype},
                    {"device", recipe.device},
                    {"engine", trainer.engine().name()},
                    {"B", recipe.batch},
                    {"T", recipe.context},
                    {"accumulate", recipe.accumulate},
                    {"recompute", recipe.recompute},
                    {"recompute_rows", recipe.recompute_rows},
                    {"recompute_mlp", recipe.recompute_mlp},
                    {"ms", t.median * 1e3},
                    {"ms_p10", t.p10 * 1e3},
                    {"ms_p90", t.p90 * 1e3},
                    {"repeats", t.repeats},
                    {"tokens_per_s", tokens / t.median},
                    {"parameters", model.table().numel()},
                    {"peak_memory_mb", static_cast<double>(peak_gpu_bytes(device).value_or(peak_resident_bytes())) * 1e-6},
                    {"check_rel_l2", {{"loss", loss_error}}},
                    {"threads", at::get_num_threads()},
                    {"commit", commit()},
                    {"date", utc_date()},
                    {"machine", machine_name(device)}};
  if (prints_text(options.json)) {
    std::cout << text("check     loss of the first step against the plain model's %.6f: %.1e, limit %.0e: ok\n", plain_loss, loss_error,
                      limit)
              << text("%s %s  B%lld T%lld: %.0f ms per step (p10 %.0f, p90 %.0f), %.0f tokens/s, peak %.1f GiB, engine %s\n",
                      row["model"].get<std::string>().c_str(), recipe.dtype.c_str(), static_cast<long long>(recipe.batch),
                      static_cast<long long>(recipe.context), t.median * 1e3, t.p10 * 1e3, t.p90 * 1e3, tokens / t.median,
                      row["peak_memory_mb"].get<double>() * 1e6 / (1 << 30), trainer.engine().name().c_str());
    for (const std::string& note : trainer.engine().notes()) std::cout << "note      " << note << '\n';
  }
  if (kernels) kernels->print("one step");
  write_rows(options.json, Json::array({row}));
  return kDone;
}

}  // namespace

void add_bench_train(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("train", "Check the loss of a training step on random tokens, then time whole steps.");
  auto options = std::make_shared<Options>();
  Recipe& r = options->recipe;
  r.batch = 2;
  command->add_option("model", options->config, "Model that gets random parameters, by name or config file")
      ->required()
      ->type_name("MODEL");
  command->add_option("--B", r.batch, "Sequences per step")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--T", r.context, "Tokens per sequence")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--accumulate", r.accumulate, "Parts into which a step's batch is split, to use less memory")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--recompute", r.recompute, "Use activation checkpointing: less memory, more time");
  command->add_flag("--recompute-rows", r.recompute_rows, "Compute norms, gates, SwiGLUs and convolutions again in backward");
  command->add_flag("--recompute-mlp", r.recompute_mlp, "Compute the MLP's gate and up projections again in backward");
  add_dtype(command, &r.dtype, "the matrix products (parameters stay fp32)", {"fp32", "bf16"});
  add_device(command, &r.device);
  add_engine(command, &r.engine);
  add_threads(command, &r.threads);
  add_repeats(command, &options->repeats);
  command->add_flag("--kernels", options->kernels, "After the timing, list the GPU kernels of one step by time; needs --device cuda");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_train(*options); }; });
}

}  // namespace cyfa::app
