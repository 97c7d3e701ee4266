// cyfa bench decode: checks a model's decode step against its forward pass, then times it beside a plain read of the weights. With
// --contexts the sequences have read so many tokens before, which costs time and memory where the state grows with the sequence.
#include <ATen/Parallel.h>

#include <iostream>
#include <map>

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
  std::vector<int64_t> batches = {1, 8}, contexts = {0};
  int repeats = 0;
  int threads = 0;
  bool kernels = false;
  std::string whole_step = "off";
};

WholeStepUse parse_whole_step(const std::string& word) {
  return word == "on" ? WholeStepUse::kOn : word == "timed" ? WholeStepUse::kTimed : WholeStepUse::kOff;
}

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

constexpr int64_t kPrefill = 4096;  // tokens of a forward, when the sequences read their context

// The states of one sequence after `contexts` random tokens, each in increasing order of the tokens.
std::map<int64_t, ModelState> states_after(StepEngine& engine, std::vector<int64_t> contexts) {
  std::sort(contexts.begin(), contexts.end());
  const CausalLM& model = engine.model();
  std::map<int64_t, ModelState> states;
  ModelState now = model.initial_state(1);
  int64_t read = 0;
  for (const int64_t context : contexts) {
    while (read < context) {
      const int64_t count = std::min(kPrefill, context - read);
      now = engine.forward(at::randint(0, model.config().vocab_size, {1, count}, at::kLong), std::nullopt, &now).final_state;
      read += count;
    }
    states.emplace(context, now.clone());
  }
  return states;
}

// One of the timed steps.
struct Case {
  int64_t batch = 1, context = 0;
  ModelState state;
  at::Tensor ids;
  std::shared_ptr<StepEngine> engine;  // one for each case, since recorded steps belong to a state
  double error = 0;

  std::string name() const {
    std::string words = text("batch %lld", static_cast<long long>(batch));
    if (context > 0) words += text(" after %lld tokens", static_cast<long long>(context));
    return words;
  }
};

int run_decode(const Options& options) {
  if (options.threads > 0) use_threads(options.threads, "--threads");
  const at::Device device = parse_device(options.device);
  if (options.kernels && !device.is_cuda()) throw std::invalid_argument("--kernels lists the kernels of a GPU; it needs --device cuda");
  const at::ScalarType dtype = parse_dtype(options.dtype);
  const std::filesystem::path path = model_path(options.model);
  const bool folder = std::filesystem::is_directory(path);
  CausalLM model = folder ? load_checkpoint(checkpoint_folder(path), {dtype, device, false}) : CausalLM(ModelConfig::read(path));
  if (!folder) model.initialise(1, dtype, device);
  const std::shared_ptr<StepEngine> engine =
      prepare_steps(model, {.engine = options.engine, .record = false, .whole_step = parse_whole_step(options.whole_step)});
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
  // Every round runs a step of each case and reads the weights once, so that a change of the machine's speed affects all alike.
  at::manual_seed(1);
  std::vector<Case> cases;
  {
    const std::map<int64_t, ModelState> after = states_after(*engine, options.contexts);
    for (const int64_t context : options.contexts) {
      for (const int64_t B : options.batches) {
        cases.push_back({.batch = B,
                         .context = context,
                         .state = context == 0 ? model.initial_state(B) : after.at(context).select(std::vector<int64_t>(B, 0)),
                         .ids = at::randint(0, model.config().vocab_size, {B}, at::kLong),
                         .engine = not_recorded.empty() ? record_steps(engine) : engine});
      }
    }
  }
  const double limit = step_error_limit(dtype);
  for (Case& c : cases) {
    c.error = step_error(*c.engine, c.state, c.context > 0);
    const bool good = c.error <= limit;  // false for NaN
    if (!good || prints_text(options.json)) {
      (good ? std::cout : std::cerr) << text("check     %s: logits of %lld steps against the forward pass %.1e, limit %.0e: %s\n",
                                             c.name().c_str(), static_cast<long long>(kCheckTokens), c.error, limit, good ? "ok" : "FAILED")
                                     << std::flush;
    }
    if (!good) {
      std::cerr << "cyfa: error: the check failed, so nothing was timed\n";
      return kCheckFailed;
    }
  }
  std::vector<Task> tasks;
  for (Case& c : cases) tasks.push_back({[&c] { c.engine->step(c.ids, c.state); }});
  if (device.is_cpu()) tasks.push_back({[&] { sum += read_once(read); }});
  const std::vector<Timing> t = measure(tasks, options.repeats, device);
  Json rows = Json::array();
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const int64_t B = c.batch;
    const double rate = static_cast<double>(B) / t[i].median;
    const double state_mb = static_cast<double>(c.state.bytes()) / static_cast<double>(B) * 1e-6;
    Json row = {{"impl", "cyfa"},           {"op", "decode"},
                {"model", name_of(path)},   {"dtype", options.dtype},
                {"device", options.device}, {"engine", c.engine->name()},
                {"path", engine->path(B)},  {"B", B},
                {"context", c.context},     {"state_mb", state_mb},
                {"ms", t[i].median * 1e3},  {"ms_p10", t[i].p10 * 1e3},
                {"ms_p90", t[i].p90 * 1e3}, {"repeats", t[i].repeats},
                {"tokens_per_s", rate},     {"ratio_to_first", rate * t[0].median / static_cast<double>(cases[0].batch)},
                {"weight_gb", bytes * 1e-9}};
    if (device.is_cpu()) {
      row["read_gb_per_s"] = bytes / t.back().median * 1e-9;
      row["share_of_reading"] = t.back().median / t[i].median;
    }
    row["check_rel_l2"] = {{"logits", c.error}};
    row["threads"] = at::get_num_threads();
    row["commit"] = commit();
    row["date"] = utc_date();
    row["machine"] = machine_name(device);
    rows.push_back(row);
    if (!prints_text(options.json)) continue;
    std::cout << text("%s %s batch %-4lld %8.2f ms per step (p10 %.2f, p90 %.2f), %8.1f tokens/s, %.2f times the first batch's",
                      row["model"].get<std::string>().c_str(), options.dtype.c_str(), static_cast<long long>(B), t[i].median * 1e3,
                      t[i].p10 * 1e3, t[i].p90 * 1e3, rate, row["ratio_to_first"].get<double>());
    if (c.context > 0) {
      std::cout << text("\n          after %lld tokens, with a state of %.2f MB for each sequence", static_cast<long long>(c.context),
                        state_mb);
    }
    if (device.is_cpu()) {
      std::cout << text("\n          %.2f GB of weights, read at %.1f GB/s by a plain loop: share %.2f", bytes * 1e-9,
                        bytes / t.back().median * 1e-9, t.back().median / t[i].median);
    }
    std::cout << text("\n          engine %s, %s\n", c.engine->name().c_str(), engine->path(B).c_str()) << std::flush;
  }
  if (prints_text(options.json)) {
    if (!not_recorded.empty() && device.is_cuda()) std::cout << "not recorded as a graph: " << not_recorded << '\n';
    for (const std::string& note : engine->notes()) std::cout << "note      " << note << '\n';
  }
  for (size_t i = 0; i < cases.size() && options.kernels; ++i) {
    const KernelTable kernels;
    tasks[i].run();
    synchronize(device);
    kernels.print(("one step of " + cases[i].name()).c_str());
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
  command->add_option("--contexts", options->contexts, "Tokens that each sequence has read before the timed steps, one or more numbers")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  add_dtype(command, &options->dtype, "the weights", {"fp32", "bf16"});
  add_device(command, &options->device);
  add_engine(command, &options->engine);
  add_threads(command, &options->threads);
  add_repeats(command, &options->repeats);
  command->add_flag("--kernels", options->kernels,
                    "After the timing, list the GPU kernels of one step of each batch by time; needs --device cuda");
  command
      ->add_option("--whole-step", options->whole_step,
                   "A step of one sequence in one launch, where the engine has that; timed also prints where its time goes")
      ->check(CLI::IsMember({"off", "on", "timed"}))
      ->capture_default_str();
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_decode(*options); }; });
}

}  // namespace cyfa::app
