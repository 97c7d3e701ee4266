// cyfa bench prefill: checks the engine's forward over a prompt against the plain model's, then times it, warm.
#include <ATen/Parallel.h>

#include <algorithm>
#include <iostream>

#include "apps/checkpoint_folder.h"
#include "apps/commands.h"
#include "apps/kernel_table.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/provided.h"
#include "apps/step_check.h"
#include "apps/threads.h"
#include "apps/timing.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string model;
  std::string dtype = "bf16", device = "cpu", engine = "auto", json;
  std::vector<int64_t> lengths = {512};
  int64_t chunk = 8192;
  int repeats = 0;
  int threads = 0;
  bool kernels = false, eager = false;
};

// The logits after a prompt [1, T], read in chunks.
at::Tensor read_prompt(StepEngine& engine, const at::Tensor& ids, int64_t chunk) {
  ModelState state;
  at::Tensor last;
  for (int64_t begin = 0; begin < ids.size(1); begin += chunk) {
    const int64_t count = std::min(chunk, ids.size(1) - begin);
    LmOutput out = engine.forward(ids.narrow(1, begin, count), std::nullopt, begin == 0 ? nullptr : &state);
    state = std::move(out.final_state);
    last = out.hidden.select(1, count - 1);
  }
  return engine.model().head_step(engine.weights(), last);
}

int run_prefill(const Options& options) {
  if (options.threads > 0) use_threads(options.threads, "--threads");
  const at::NoGradGuard no_grad;
  const at::Device device = parse_device(options.device);
  if (options.kernels && !device.is_cuda()) throw std::invalid_argument("--kernels lists the kernels of a GPU; it needs --device cuda");
  const at::ScalarType dtype = parse_dtype(options.dtype);
  const std::filesystem::path path = model_path(options.model);
  const bool folder = std::filesystem::is_directory(path);
  CausalLM model = folder ? load_checkpoint(checkpoint_folder(path), {dtype, device, false}) : CausalLM(ModelConfig::read(path));
  if (!folder) model.initialise(1, dtype, device);
  const std::shared_ptr<StepEngine> engine = prepare_steps(model, {.engine = options.engine, .record = !options.eager});
  at::manual_seed(1);
  const double limit = step_error_limit(dtype);
  std::vector<at::Tensor> prompts;
  std::vector<double> errors;
  std::vector<Task> tasks;
  for (const int64_t T : options.lengths) {
    prompts.push_back(at::randint(0, model.config().vocab_size, {1, T}, at::kLong));
    // Twice: on a GPU the second forward is recorded, and the third is its first replay.
    for (int i = 0; i < 2; ++i) read_prompt(*engine, prompts.back(), options.chunk);
    const at::Tensor got = read_prompt(*engine, prompts.back(), options.chunk);
    const int64_t checked = std::min(T, options.chunk);
    const at::Tensor start = prompts.back().narrow(1, 0, checked),
                     want = model.forward(engine->weights(), start).hidden.select(1, checked - 1);
    const at::Tensor mine = T == checked ? got : read_prompt(*engine, start, options.chunk);
    const at::Tensor expected = model.head_step(engine->weights(), want);
    errors.push_back((at::linalg_vector_norm(mine - expected) / at::linalg_vector_norm(expected)).item<double>());
    const bool good = errors.back() <= limit;  // false for NaN
    if (!good || prints_text(options.json)) {
      (good ? std::cout : std::cerr) << text("check     %lld tokens: logits against the plain model's forward %.1e, limit %.0e: %s\n",
                                             static_cast<long long>(T), errors.back(), limit, good ? "ok" : "FAILED")
                                     << std::flush;
    }
    if (!good) {
      std::cerr << "cyfa: error: the check failed, so nothing was timed\n";
      return kCheckFailed;
    }
    tasks.push_back({[&, i = prompts.size() - 1] { read_prompt(*engine, prompts[i], options.chunk); }});
  }
  const std::vector<Timing> t = measure(tasks, options.repeats, device);
  Json rows = Json::array();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int64_t T = options.lengths[i];
    const double rate = static_cast<double>(T) / t[i].median;
    rows.push_back({{"impl", "cyfa"},
                    {"op", "prefill"},
                    {"model", name_of(path)},
                    {"dtype", options.dtype},
                    {"device", options.device},
                    {"engine", engine->name()},
                    {"B", 1},
                    {"T", T},
                    {"chunk", std::min(T, options.chunk)},
                    {"ms", t[i].median * 1e3},
                    {"ms_p10", t[i].p10 * 1e3},
                    {"ms_p90", t[i].p90 * 1e3},
                    {"repeats", t[i].repeats},
                    {"tokens_per_s", rate},
                    {"check_rel_l2", {{"logits", errors[i]}}},
                    {"threads", at::get_num_threads()},
                    {"commit", commit()},
                    {"date", utc_date()},
                    {"machine", machine_name(device)}});
    if (!prints_text(options.json)) continue;
    std::cout << text("%s %s prompt of %lld tokens: %.2f ms (p10 %.2f, p90 %.2f), %.0f tokens/s, engine %s\n", name_of(path).c_str(),
                      options.dtype.c_str(), static_cast<long long>(T), t[i].median * 1e3, t[i].p10 * 1e3, t[i].p90 * 1e3, rate,
                      engine->name().c_str())
              << std::flush;
  }
  if (prints_text(options.json)) {
    for (const std::string& note : engine->notes()) std::cout << "note      " << note << '\n';
  }
  for (size_t i = 0; i < prompts.size() && options.kernels; ++i) {
    const KernelTable kernels;
    tasks[i].run();
    synchronize(device);
    kernels.print(text("one prompt of %lld tokens", static_cast<long long>(options.lengths[i])).c_str());
  }
  write_rows(options.json, rows);
  return kDone;
}

}  // namespace

void add_bench_prefill(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("prefill", "Check the forward of a prompt, then time it.");
  auto options = std::make_shared<Options>();
  command->add_option("model", options->model, "Checkpoint directory; or a model that gets random parameters, by name or config file")
      ->required()
      ->type_name("MODEL");
  command->add_option("--T", options->lengths, "Lengths of prompts to time, in tokens")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--chunk", options->chunk, "Most tokens per forward; a longer prompt takes several")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--eager", options->eager, "On a GPU, do not record the forward of a short prompt as a graph");
  add_dtype(command, &options->dtype, "the weights", {"fp32", "bf16"});
  add_device(command, &options->device);
  add_engine(command, &options->engine);
  add_threads(command, &options->threads);
  add_repeats(command, &options->repeats);
  command->add_flag("--kernels", options->kernels, "After the timing, list the GPU kernels of each prompt by time; needs --device cuda");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_prefill(*options); }; });
}

}  // namespace cyfa::app
