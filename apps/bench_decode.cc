// cyfa bench decode: checks a model's decode step against its forward pass, then times it beside a plain read of the weights.
#include <ATen/Parallel.h>

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
#include "cyfa/engine/recorded.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string model;
  std::string dtype = "bf16", device = "cpu", engine = "auto", json;
  std::vector<int64_t> batches = {1, 8};
  int repeats = 0;
  int threads = 0;
  bool kernels = false;
};

// Sums all 8-byte words, at the speed of memory.
uint64_t read_once(const std::vector<at::Tensor>& tensors) {
  std::atomic<uint64_t> total = 0;
  for (const at::Tensor& x : tensors) {
    const auto* words = static_cast<const uint64_t*>(x.const_data_ptr());
    at::parallel_for(0, static_cast<int64_t>(x.nbytes() / 8), 1 << 15, [&](int64_t begin, int64_t end) {
      uint64_t sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += words[i];
      total += sum;
    });
  }
  return total;
}

int run_decode(const Options& options) {
  if (options.threads > 0) use_threads(options.threads, "--threads");
  const at::Device device = parse_device(options.device);
  if (options.kernels && !device.is_cuda()) throw std::invalid_argument("--kernels lists the kernels of a GPU; it needs --device cuda");
  const at::ScalarType dtype = parse_dtype(options.dtype);
  const std::filesystem::path path = model_path(options.model);
  const bool folder = std::filesystem::is_directory(path);
  CausalLM model = folder ? load_checkpoint(checkpoint_folder(path), {dtype, device, false}) : CausalLM(ModelConfig::read(path));
  if (!folder) model.initialise(1, dtype, device);
  const std::shared_ptr<StepEngine> engine = prepare_steps(model, {.engine = options.engine, .record = false});
  const std::string not_recorded = recording_refusal(model);
  std::vector<at::Tensor> read;  // all but the embedding, of which a step reads one row per sequence
  double bytes = 0;
  const Weights& w = engine->weights();
  for (size_t id = 0; id < w.size(); ++id) {
    if (model.table().specs()[id].name.find("embeddings") != std::string::npos && !model.config().tied_head) continue;
    read.push_back(w[id]);
    bytes += static_cast<double>(w[id].nbytes());
  }
  uint64_t sum = 0;
  // Every round runs a step of each batch and reads the weights once, so that a change of the machine's speed affects all alike.
  std::vector<ModelState> states;
  std::vector<at::Tensor> ids;
  std::vector<Task> tasks;
  for (const int64_t B : options.batches) {
    states.push_back(model.initial_state(B));
    ids.push_back(at::randint(0, model.config().vocab_size, {B}, at::kLong));
  }
  std::vector<std::shared_ptr<StepEngine>> steps;  // one a batch, since recorded steps belong to a state
  for (size_t i = 0; i < ids.size(); ++i) {
    steps.push_back(not_recorded.empty() ? record_steps(engine) : engine);
    tasks.push_back({[&, i] { steps[i]->step(ids[i], states[i]); }});
  }
  at::manual_seed(1);
  const double limit = step_error_limit(dtype);
  std::vector<double> errors;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t B = options.batches[i];
    errors.push_back(step_error(*steps[i], states[i]));
    const bool good = errors.back() <= limit;  // false for NaN
    if (!good || prints_text(options.json)) {
      (good ? std::cout : std::cerr) << text("check     batch %lld: logits of %lld steps against the forward pass %.1e, limit %.0e: %s\n",
                                             static_cast<long long>(B), static_cast<long long>(kCheckTokens), errors.back(), limit,
                                             good ? "ok" : "FAILED")
                                     << std::flush;
    }
    if (!good) {
      std::cerr << "cyfa: error: the check failed, so nothing was timed\n";
      return kCheckFailed;
    }
  }
  if (device.is_cpu()) tasks.push_back({[&] { sum += read_once(read); }});
  const std::vector<Timing> t = measure(tasks, options.repeats, device);
  Json rows = Json::array();
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t B = options.batches[i];
    const double rate = static_cast<double>(B) / t[i].median;
    Json row = {{"impl", "cyfa"},           {"op", "decode"},
                {"model", name_of(path)},   {"dtype", options.dtype},
                {"device", options.device}, {"engine", steps[i]->name()},
                {"path", engine->path(B)},  {"B", B},
                {"ms", t[i].median * 1e3},  {"ms_p10", t[i].p10 * 1e3},
                {"ms_p90", t[i].p90 * 1e3}, {"repeats", t[i].repeats},
                {"tokens_per_s", rate},     {"ratio_to_first", rate * t[0].median / static_cast<double>(options.batches[0])},
                {"weight_gb", bytes * 1e-9}};
    if (device.is_cpu()) {
      row["read_gb_per_s"] = bytes / t.back().median * 1e-9;
      row["share_of_reading"] = t.back().median / t[i].median;
    }
    row["check_rel_l2"] = {{"logits", errors[i]}};
    row["threads"] = at::get_num_threads();
    row["commit"] = commit();
    row["date"] = utc_date();
    row["machine"] = machine_name(device);
    rows.push_back(row);
    if (!prints_text(options.json)) continue;
    std::cout << text("%s %s batch %-4lld %8.2f ms per step (p10 %.2f, p90 %.2f), %8.1f tokens/s, %.2f times the first batch's",
                      row["model"].get<std::string>().c_str(), options.dtype.c_str(), static_cast<long long>(B), t[i].median * 1e3,
                      t[i].p10 * 1e3, t[i].p90 * 1e3, rate, row["ratio_to_first"].get<double>());
    if (device.is_cpu()) {
      std::cout << text("\n          %.2f GB of weights, read at %.1f GB/s by a plain loop: share %.2f", bytes * 1e-9,
                        bytes / t.back().median * 1e-9, t.back().median / t[i].median);
    }
    std::cout << text("\n          engine %s, %s\n", steps[i]->name().c_str(), engine->path(B).c_str()) << std::flush;
  }
  if (prints_text(options.json)) {
    if (!not_recorded.empty() && device.is_cuda()) std::cout << "not recorded as a graph: " << not_recorded << '\n';
    for (const std::string& note : engine->notes()) std::cout << "note      " << note << '\n';
  }
  for (size_t i = 0; i < ids.size() && options.kernels; ++i) {
    const KernelTable kernels;
    tasks[i].run();
    synchronize(device);
    kernels.print(text("one step of batch %lld", static_cast<long long>(options.batches[i])).c_str());
  }
  if (sum == 1) std::cout << ' ';  // uses the sums, so that they are not optimised away
  write_rows(options.json, rows);
  return kDone;
}

}  // namespace

void add_bench_decode(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("decode", "Check a model's decode step, then time it beside a plain read of its weights.");
  auto options = std::make_shared<Options>();
  command->add_option("model", options->model, "Checkpoint directory; or a model that gets random parameters, by name or config file")
      ->required()
      ->type_name("MODEL");
  command->add_option("--B", options->batches, "Batch sizes to time, each the number of sequences decoded together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_dtype(command, &options->dtype, "the weights", {"fp32", "bf16"});
  add_device(command, &options->device);
  add_engine(command, &options->engine);
  add_threads(command, &options->threads);
  add_repeats(command, &options->repeats);
  command->add_flag("--kernels", options->kernels,
                    "After the timing, list the GPU kernels of one step of each batch by time; needs --device cuda");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_decode(*options); }; });
}

}  // namespace cyfa::app
