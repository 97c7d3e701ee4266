// cyfa eval: scores a checkpoint on evaluation tasks.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <numeric>
#include <set>

#include "apps/checkpoint_folder.h"
#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/machine.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/threads.h"
#include "apps/train_screen.h"
#include "cyfa/data/text_source.h"
#include "cyfa/eval/evaluation.h"
#include "cyfa/io/atomic_file.h"
#include "cyfa/io/folder_lock.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;
using eval::Metric;
using eval::TaskKind;
using eval::TaskResult;

struct Options {
  std::string folder;
  std::vector<std::string> tasks;
  std::vector<int64_t> lengths;
  std::string haystack, save_samples;
  std::string data, out, tokenizer, dtype, device = "cpu", engine = "auto", json, bos = "auto";
  int64_t limit = 0, max_length = 0;
  uint64_t seed = 42;
  eval::ScorerOptions scorer;
  int threads = 0;
  bool list = false, quiet = false;
};

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
  return all;
}

void list_tasks() {
  std::cout << "Tasks, with the groups that they belong to:\n";
  for (const TaskKind& kind : eval::task_kinds()) {
    const std::string name = kind.name + (kind.argument.empty() ? "" : ":" + kind.argument) + (kind.length ? "[@LENGTH]" : "");
    std::string meaning = kind.about;
    if (kind.length) meaning += text(" [length: %lld tokens]", static_cast<long long>(*kind.length));
    if (!kind.groups.empty()) meaning += " (" + joined(kind.groups) + ")";
    std::cout << help_line("  " + name, meaning);
  }
}

// The data folder: --data, or the variable.
std::string data_folder(const Options& options) {
  if (!options.data.empty()) return options.data;
  const char* named = std::getenv("CYFA_EVAL_DATA");
  return named == nullptr ? "" : named;
}

std::string hex(uint64_t value) { return text("%016llx", static_cast<unsigned long long>(value)); }

// Five significant digits, at most four of them behind the point: as many as fp32 sums of log-likelihoods hold.
std::string value_text(double value) {
  const double size = std::abs(value);
  if (!(size < 1e5)) return text("%.4e", value);
  const int before = size < 1 ? 1 : static_cast<int>(std::floor(std::log10(size))) + 1;
  return text("%.*f", std::clamp(5 - before, 0, 4), value);
}

class Screen {
 public:
  explicit Screen(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

  void progress(const std::string& task, const eval::EvaluationProgress& p) {
    if (quiet_ || (!terminal_ && p.seconds < next_)) return;
    next_ = p.seconds + 10;
    std::string line = text("%s: %lld of %lld documents", task.c_str(), static_cast<long long>(p.done), static_cast<long long>(p.all));
    if (p.seconds_left >= 0 && p.done < p.all) line += ", " + duration(p.seconds_left) + " left";
    std::cerr << (terminal_ ? "\r\x1b[K" : "cyfa: ") << line << (terminal_ ? "" : "\n") << std::flush;
  }
  // Only prompts that take a while.
  void prefill(int64_t done, int64_t all) {
    if (quiet_ || !terminal_ || all < 65536) return;
    std::cerr << text("\r\x1b[Kreading a prompt: %lld of %lld tokens", static_cast<long long>(done), static_cast<long long>(all))
              << std::flush;
  }
  void end_task() {
    if (!quiet_ && terminal_) std::cerr << "\r\x1b[K" << std::flush;
    next_ = 0;
  }
  void note(const std::string& words) const {
    if (!quiet_) std::cerr << "cyfa: note: " << words << '\n';
  }

 private:
  bool quiet_, terminal_;
  double next_ = 0;  // seconds of a task at which a line is due
};

// Groups whose tasks have a common mean, when all of them were run.
constexpr const char* kAveraged[] = {"zeroshot", "recall", "ruler", "longbench"};

// Tasks with a length have a mean for each length.
std::vector<TaskResult> with_means(std::vector<TaskResult> results) {
  std::vector<TaskResult> means;
  for (const char* group : kAveraged) {
    std::map<std::string, std::vector<double>> values;  // by "@LENGTH"
    size_t members = 0;
    for (const TaskKind& kind : eval::task_kinds()) {
      if (std::find(kind.groups.begin(), kind.groups.end(), group) == kind.groups.end()) continue;
      ++members;
      for (const TaskResult& r : results) {
        const size_t at = std::min(r.name.find('@'), r.name.size());
        if (r.name.substr(0, at) == kind.name && !r.metrics.empty()) values[r.name.substr(at)].push_back(r.metrics.front().value);
      }
    }
    for (const auto& [length, found] : values) {
      if (found.size() != members) continue;
      const double mean = std::accumulate(found.begin(), found.end(), 0.0) / static_cast<double>(members);
      means.push_back({.name = group + length, .metrics = {{.name = "mean", .value = mean}}});
    }
  }
  results.insert(results.end(), means.begin(), means.end());
  return results;
}

void print_table(const std::vector<TaskResult>& results) {
  size_t width = 4, metric_width = 6;
  for (const TaskResult& r : results) {
    width = std::max(width, r.name.size());
    for (const Metric& m : r.metrics) metric_width = std::max(metric_width, m.name.size());
  }
  const int w = static_cast<int>(width), mw = static_cast<int>(metric_width);
  std::cout << text("%-*s  %-*s  %12s  %10s  %9s\n", w, "task", mw, "metric", "value", "std error", "documents");
  for (const TaskResult& r : results) {
    for (size_t i = 0; i < r.metrics.size(); ++i) {
      const Metric& m = r.metrics[i];
      const std::string documents = i == 0 && r.documents > 0 ? std::to_string(r.documents) : "";
      std::cout << text("%-*s  %-*s  %12s  %10s  %9s\n", w, i == 0 ? r.name.c_str() : "", mw, m.name.c_str(), value_text(m.value).c_str(),
                        m.error ? value_text(*m.error).c_str() : "", documents.c_str());
    }
  }
}

// The first metric of each task that was run at several lengths, against the length.
void print_lengths(const std::vector<TaskResult>& results) {
  std::map<std::string, std::map<int64_t, double>> scores;
  std::vector<std::string> tasks;
  std::set<int64_t> lengths;
  for (const TaskResult& r : results) {
    const size_t at = r.name.rfind('@');
    if (at == std::string::npos || r.metrics.empty()) continue;
    const std::string task = r.name.substr(0, at);
    if (!scores.contains(task)) tasks.push_back(task);
    scores[task][std::stoll(r.name.substr(at + 1))] = r.metrics.front().value;
  }
  std::erase_if(tasks, [&](const std::string& task) { return scores[task].size() < 2; });
  if (tasks.empty()) return;
  size_t width = 15;
  for (const std::string& task : tasks) {
    width = std::max(width, task.size());
    for (const auto& [length, score] : scores[task]) lengths.insert(length);
  }
  const int w = static_cast<int>(width);
  std::cout << text("\n%-*s", w, "score by length");
  for (const int64_t length : lengths) std::cout << text("  %8lld", static_cast<long long>(length));
  std::cout << '\n';
  for (const std::string& task : tasks) {
    std::cout << text("%-*s", w, task.c_str());
    for (const int64_t length : lengths) {
      const auto score = scores[task].find(length);
      std::cout << text("  %8s", score == scores[task].end() ? "" : value_text(score->second).c_str());
    }
    std::cout << '\n';
  }
}

// The tasks that the user names; --lengths applies to those that have a length and are named without one.
std::vector<eval::TaskName> task_names(const Options& options) {
  if (options.lengths.empty()) return eval::parse_tasks(options.tasks);
  std::vector<std::string> words;
  for (const std::string& word : options.tasks) {
    for (eval::TaskName& name : eval::parse_tasks({word})) {
      if (!name.length || word.find('@') != std::string::npos) {
        words.push_back(name.text());
        continue;
      }
      for (const int64_t length : options.lengths) {
        name.length = length;
        words.push_back(name.text());
      }
    }
  }
  return eval::parse_tasks(words);
}

// Writes the documents of tasks that make them, a file for each: NAME-LENGTH.jsonl.
void save_samples(const Options& options, const std::vector<eval::TaskName>& names, const std::vector<std::unique_ptr<eval::Task>>& tasks) {
  fs::create_directories(options.save_samples);
  int64_t files = 0;
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (tasks[t]->sample_line(0).empty()) continue;
    std::string name = names[t].text() + ".jsonl";
    for (char& c : name) {
      if (std::string_view("@:/\\").find(c) != std::string_view::npos) c = '-';
    }
    io::AtomicFile file(fs::path(options.save_samples) / name);
    const int64_t all = options.limit > 0 ? std::min(options.limit, tasks[t]->size()) : tasks[t]->size();
    for (int64_t i = 0; i < all; ++i) {
      const std::string line = tasks[t]->sample_line(i) + "\n";
      file.write(std::as_bytes(std::span(line)));
    }
    file.commit();
    ++files;
  }
  if (files == 0) throw std::invalid_argument("--save-samples: none of the tasks makes its documents; RULER's do");
}

Json rows_of(const Json& manifest, const std::vector<TaskResult>& results) {
  Json rows = {manifest};
  for (const TaskResult& r : results) {
    for (const Metric& m : r.metrics) {
      Json row = {{"table", "results"}, {"task", r.name}, {"metric", m.name}, {"value", m.value}, {"stderr", nullptr}};
      if (m.error) row["stderr"] = *m.error;
      row["higher_is_better"] = m.higher_is_better;
      if (r.documents > 0) {
        row["documents"] = r.documents;
        row["of"] = r.available;
        row["dropped"] = r.dropped;
        row["truncated"] = r.truncated;
        row["tokens"] = r.tokens;
        row["resumed"] = r.resumed;
        row["seconds"] = r.seconds;
        row["cpu_seconds"] = r.cpu_seconds;
      }
      rows.push_back(row);
    }
  }
  return rows;
}

int run_eval(const Options& options) {
  if (options.list) {
    list_tasks();
    return kDone;
  }
  if (options.folder.empty()) throw std::invalid_argument("wanted a checkpoint directory and tasks; `cyfa eval --tasks` lists the tasks");
  if (options.tasks.empty()) throw std::invalid_argument("no task is named; `cyfa eval --tasks` lists them");
  const std::vector<eval::TaskName> names = task_names(options);
  if (options.threads > 0) use_threads(options.threads, "--threads");
  if (!options.json.empty() && options.json != "-") check_writable(options.json);

  LoadOptions load;
  load.device = parse_device(options.device);
  if (!options.dtype.empty()) load.dtype = parse_dtype(options.dtype);
  const std::string folder = checkpoint_folder(options.folder, options.quiet);
  CausalLM model = load_checkpoint(folder, load);
  const std::unique_ptr<Tokenizer> tokenizer =
      options.tokenizer.empty() ? checkpoint_tokenizer(folder, model.config()) : load_tokenizer(options.tokenizer);
  check_vocabulary(*tokenizer, model.config());
  const bool bos = options.bos == "auto" ? eval::checkpoint_puts_bos(folder, *tokenizer) : options.bos == "always";
  const eval::Encoder encoder(*tokenizer, model.config(), bos);
  eval::ScorerOptions scoring = options.scorer;
  scoring.max_length = options.max_length > 0 ? options.max_length : model.config().backbone.context;

  Json manifest = {{"table", "manifest"},
                   {"model", options.folder},
                   {"model_type", model.config().kind->model_type},
                   {"model_hash", hex(fingerprint(model))},
                   {"tokenizer", tokenizer->name() == "bytes" ? "bytes" : fs::path(tokenizer->name()).filename().string()},
                   {"tokenizer_hash", hex(tokenizer->hash())},
                   {"bos", encoder.puts_bos()},
                   {"prefix_token", encoder.prefix()},
                   {"dtype", c10::toString(model.parameters().at(model.head_weight()).scalar_type())},
                   {"device", options.device},
                   {"max_length", scoring.max_length},
                   {"seed", options.seed}};
  eval::EvaluationOptions run{.limit = options.limit, .folder = options.out, .identity = Json::object()};
  for (const char* key : {"model_hash", "tokenizer_hash", "bos", "dtype", "device", "max_length", "seed"})
    run.identity[key] = manifest[key];

  // Every file is looked for before any model runs.
  eval::DataFiles files(data_folder(options));
  require_files(names, files);
  std::vector<std::unique_ptr<eval::Task>> tasks;
  for (const eval::TaskName& name : names) {
    tasks.push_back(eval::load_task(name, {.files = files,
                                           .encoder = encoder,
                                           .max_length = scoring.max_length,
                                           .limit = options.limit,
                                           .seed = options.seed,
                                           .haystack = options.haystack}));
  }
  for (size_t i = 0; i < tasks.size(); ++i) manifest["truncation"][names[i].text()] = tasks[i]->truncation();
  Json hashes = Json::object();
  for (const auto& [file, hash] : files.hashes()) hashes[file] = hex(hash);
  if (!options.haystack.empty()) {
    PassedOver passed;
    for (const InputFile& file : find_inputs({options.haystack}, passed)) {
      const auto read = hashes.find(file.path.filename().string());
      if (read != hashes.end()) run.identity["haystack"].push_back(*read);
    }
  }
  if (!options.save_samples.empty()) save_samples(options, names, tasks);
  std::optional<io::FolderLock> lock;
  std::optional<GracefulStop> stop;
  if (!options.out.empty()) {
    fs::create_directories(options.out);
    lock.emplace(options.out, "another `cyfa eval`");
    stop.emplace("\ncyfa: finishing the documents of this batch; press Ctrl-C again to end at once\n");
  }

  const std::unique_ptr<StepEngine> engine = prepare_steps(model, {.engine = options.engine});
  eval::Scorer scorer(*engine, encoder, scoring);
  if (stop) scorer.should_stop = [&] { return stop->requested(); };
  Screen screen(options.quiet);
  scorer.on_prefill = [&](int64_t done, int64_t all) { screen.prefill(done, all); };
  std::vector<TaskResult> results;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const std::string name = names[i].text();
    run.identity["files"] = Json::array();
    for (const eval::TaskFile& file : names[i].kind->files) {
      if (files.has(file)) run.identity["files"].push_back(hashes[files.find(file).filename().string()]);
    }
    if (!names[i].argument.empty()) run.identity["files"].push_back(hashes[fs::path(names[i].argument).filename().string()]);
    results.push_back(evaluate(name, *tasks[i], scorer, run, [&](const eval::EvaluationProgress& p) { screen.progress(name, p); }));
    screen.end_task();
    if (results.back().metrics.empty()) {
      screen.note("interrupted; finished documents are kept in " + options.out + ", and the same command continues");
      return kStopped;
    }
    if (results.back().truncated > 0) {
      screen.note(text("%s: %lld of %lld documents are longer than %lld tokens and were cut", name.c_str(),
                       static_cast<long long>(results.back().truncated), static_cast<long long>(results.back().documents),
                       static_cast<long long>(scoring.max_length)));
    }
    tasks[i].reset();
  }
  results = with_means(std::move(results));

  manifest["limit"] = options.limit;
  manifest["engine"] = engine->name();
  manifest["batch_tokens"] = scoring.batch_tokens;
  manifest["threads"] = at::get_num_threads();
  manifest["machine"] = machine_name(load.device);
  manifest["peak_memory_mb"] = static_cast<double>(peak_gpu_bytes(load.device).value_or(peak_resident_bytes())) * 1e-6;
  manifest["version"] = CYFA_VERSION;
  manifest["commit"] = commit();
  manifest["torch"] = runtime_torch();
  manifest["date"] = utc_date();
  manifest["files"] = hashes;
  const Json rows = rows_of(manifest, results);
  if (!options.out.empty()) write_rows((fs::path(options.out) / "results.json").string(), rows);
  write_rows(options.json, rows);
  if (prints_text(options.json)) {
    print_table(results);
    print_lengths(results);
  }
  return kDone;
}

constexpr const char* kFooter =
    "Ctrl-C ends the program at once. With --out it finishes a batch first, and the same command continues later.\n"
    "Exit status: 0 done, 2 bad input or an error, 3 stopped by a signal, with finished documents kept.";

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("eval", "Score a checkpoint on evaluation tasks: perplexity, multiple choice, recall.");
  command->footer(kFooter);
  auto options = std::make_shared<Options>();
  command->add_option("model", options->folder, "Checkpoint directory, or the folder of a training run, whose newest checkpoint is used")
      ->type_name("DIR");
  command->add_option("task", options->tasks, "Tasks and groups of tasks: NAME, NAME:ARGUMENT, NAME@LENGTH")->type_name("TASK");
  command->add_flag("--tasks", options->list, "List the tasks and groups");
  command->add_option("--data", options->data, "Folder of the tasks' files")->type_name("DIR")->default_str("the variable CYFA_EVAL_DATA");
  command->add_option("-o,--out", options->out, "Folder for results.json and the results of every document; continues an interrupted run")
      ->type_name("DIR");
  command->add_option("--limit", options->limit, "Documents of each task, from the first; 0 for all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--max-length", options->max_length, "Tokens that the model is given at most; longer inputs lose their beginning")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40))
      ->default_str("the config's max_position_embeddings");
  command->add_option("--bos", options->bos, "Whether a BOS token begins every text; auto does what the checkpoint's tokenizer says")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
  command->add_option("--batch-tokens", options->scorer.batch_tokens, "Most tokens that are scored together")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--batch", options->scorer.batch_sequences, "Most texts that are generated together")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--lengths", options->lengths, "Lengths in tokens of tasks that have one and are named without it")
      ->check(CLI::PositiveNumber)
      ->default_str("each task's own");
  command->add_option("--haystack", options->haystack, "Text that RULER's needles are hidden in: a file, or a folder of files")
      ->type_name("PATH")
      ->default_str("Alice's Adventures in Wonderland");
  command->add_option("--save-samples", options->save_samples, "Folder for the samples that tasks make, in RULER's format")
      ->type_name("DIR");
  command->add_option("--seed", options->seed, "Random seed of tasks that generate their documents")->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "SentencePiece model file, or the word bytes")
      ->type_name("FILE")
      ->default_str("the checkpoint's own");
  add_dtype(command, &options->dtype, "the weights", {"fp32", "bf16", "fp64"});
  add_device(command, &options->device);
  add_engine(command, &options->engine);
  add_threads(command, &options->threads);
  command->add_flag("-q,--quiet", options->quiet, "Print no progress and notes on the standard error");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_eval(*options); }; });
}

}  // namespace cyfa::app
