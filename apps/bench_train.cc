// cyfa bench train: times whole training steps (forward, backward, clipping, AdamW), once the first has the plain model's loss. On several
// ranks (torchrun -m cyfa bench train) every rank trains, and rank 0 prints.
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
#include "apps/ranks.h"
#include "apps/threads.h"
#include "apps/timing.h"
#include "cyfa/train/trainer.h"

namespace cyfa::app {
namespace {

// Largest relative difference between the loss of the first step and the plain model's on the same batch of `tokens`. The loss of a model
// with random parameters is close to log(vocab_size) whatever its layers compute, so the limits are tight. In bf16 and fp8 the rounding
// errors of the tokens average out. With layers that compute something else, the logits of a token change by about their own spread, and
// the loss of 16,384 tokens by about 7e-4 of its value.
double check_limit(const std::string& dtype, double tokens) {
  if (dtype == "fp8") return std::max(3e-4, 3e-2 / std::sqrt(tokens));
  return dtype == "bf16" ? std::max(1e-4, 1e-2 / std::sqrt(tokens)) : 1e-5;
}

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
  recipe.log_every = 1;  // what the trainer says about the exchange is then of one step
  recipe.check();
  const Groups groups = join_ranks(recipe);
  const at::Device device = rank_device(recipe);
  if (options.kernels && !device.is_cuda()) throw std::invalid_argument("--kernels lists the kernels of a GPU; it needs --device cuda");
  CausalLM model(ModelConfig::read(path));
  model.initialise(1, at::kFloat, device);
  at::manual_seed(1 + static_cast<uint64_t>(groups.reader()));
  const int64_t rows = recipe.batch / recipe.accumulate / groups.readers();
  const at::Tensor ids = at::randint(0, model.config().vocab_size, {rows, recipe.context + 1}, at::kLong);
  const TrainBatch batch{ids.narrow(1, 0, recipe.context), ids.narrow(1, 1, recipe.context), std::nullopt};
  double plain_loss = 0;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor loss = model.loss(model.weights(compute_type(recipe)), batch.inputs, batch.targets);
    const at::Tensor sum = loss.to(at::kCPU, at::kDouble).view({1});
    groups.all.all_reduce(sum).wait();
    plain_loss = sum.item<double>() / groups.all.size();
  }
  reset_gpu_peak(device);
  double loss_error = 0;  // relative, of the first step
  const double limit = check_limit(recipe.dtype, static_cast<double>(batch.inputs.numel()));
  Trainer trainer(
      model, recipe, [&](int64_t) { return batch; }, {}, nullptr, groups.all, groups.context);
  std::vector<double> seconds;
  double last = 0, total = 0;
  const auto enough = [&] {
    const auto steps = static_cast<int>(seconds.size());
    return options.repeats > 0 ? steps >= options.repeats : steps >= kLeastSteps && total >= 1;
  };
  std::optional<KernelTable> kernels;
  bool kernels_done = false;
  Json ranks;  // of the last step: what the trainer says about the exchange
  trainer.on_step = [&](const Json& row) {
    if (row.contains("ranks")) ranks = row["ranks"];
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
    if (!groups.all.leads()) return kCheckFailed;
    std::cerr << text("check: %s; the plain model's loss is %.6f, limit %.0e\n", e.what(), plain_loss, limit)
              << "cyfa: error: the check failed, so nothing was timed\n";
    return kCheckFailed;
  }
  if (!groups.all.leads()) return kDone;
  const Timing t = summarise(seconds);
  const auto tokens = static_cast<double>(recipe.batch * recipe.context);
  Json row = {{"impl", "cyfa"},
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
  if (!groups.all.alone()) {
    row["shard"] = recipe.shard;
    row["reduce"] = recipe.reduce;
    row["context_ranks"] = recipe.context_ranks;
    row["ranks"] = ranks;
  }
  if (prints_text(options.json)) {
    std::cout << text("check     loss of the first step against the plain model's %.6f: %.1e, limit %.0e: ok\n", plain_loss, loss_error,
                      limit)
              << text("%s %s  B%lld T%lld: %.0f ms per step (p10 %.0f, p90 %.0f), %.0f tokens/s, peak %.1f GiB, engine %s\n",
                      row["model"].get<std::string>().c_str(), recipe.dtype.c_str(), static_cast<long long>(recipe.batch),
                      static_cast<long long>(recipe.context), t.median * 1e3, t.p10 * 1e3, t.p90 * 1e3, tokens / t.median,
                      row["peak_memory_mb"].get<double>() * 1e6 / (1 << 30), trainer.engine().name().c_str());
    if (!groups.all.alone()) {
      std::cout << text(
          "ranks     %d: each sends %.1f MiB a step; rank 0 waits %.0f ms, the ranks compute %.0f ms, rank %lld longest, %.0f ms\n",
          groups.all.size(), ranks["bytes_sent_per_step"].get<double>() / (1 << 20), ranks["seconds_waiting_per_step"].get<double>() * 1e3,
          ranks["seconds_computing_per_step"].get<double>() * 1e3, static_cast<long long>(ranks["slowest"].get<int64_t>()),
          ranks["slowest_seconds_per_step"].get<double>() * 1e3);
    }
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
  add_dtype(command, &r.dtype, "the matrix products (parameters stay fp32; fp8: those of the layers, all else in bf16)",
            {"fp32", "bf16", "fp8"});
  add_device(command, &r.device);
  add_engine(command, &r.engine);
  add_threads(command, &r.threads);
  add_repeats(command, &options->repeats);
  command->add_option("--shard", r.shard, "On several ranks (torchrun -m cyfa bench train): what is divided, none or optimizer (ZeRO-1)")
      ->check(CLI::IsMember({"none", "optimizer"}))
      ->capture_default_str();
  command->add_option("--reduce", r.reduce, "Type in which the ranks sum gradients, fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--context-ranks", r.context_ranks, "Ranks over which sequences are cut")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--kernels", options->kernels, "After the timing, list the GPU kernels of one step by time; needs --device cuda");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return as_rank([&] { return run_train(*options); }); }; });
}

}  // namespace cyfa::app
