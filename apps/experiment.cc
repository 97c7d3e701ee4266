// cyfa experiment: the paper's comparisons, one command each: plans the runs, makes those that are missing in worker processes, and writes
// the report.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>

#include "apps/amounts.h"
#include "apps/checkpoint_folder.h"
#include "apps/commands.h"
#include "apps/experiment_worker.h"
#include "apps/interrupt.h"
#include "apps/limits.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/provided.h"
#include "apps/train_screen.h"
#include "cyfa/data/token_data.h"
#include "cyfa/data/tokenizer.h"
#include "cyfa/experiment/report.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/folder_lock.h"
#include "cyfa/io/nearest_name.h"
#include "cyfa/model/checkpoint.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;
using experiment::Experiment;
using experiment::Kind;
using experiment::Plan;
using experiment::Results;
using experiment::Run;
using Clock = std::chrono::steady_clock;

constexpr const char* kFolder = "experiments";  // of configs
constexpr const char* kStopping = "cyfa: stopping the runs, with checkpoints; a second signal ends at once, without\n";

struct Options {
  std::string name, scale, data, out = "out/experiments", device = "cpu";
  std::vector<std::string> set, models;
  int jobs = 1, threads = 0;
  double minutes = 0;
  bool list = false, plan = false, report = false, keep = false, quiet = false, worker = false;
};

std::vector<fs::path> recipes() {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(provided_folder() / "configs" / kFolder, error)) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

fs::path recipe_file(const std::string& name) {
  if (fs::path(name).extension() == ".toml" && fs::exists(name)) return name;
  std::vector<std::string> names;
  for (const fs::path& file : recipes()) {
    names.push_back(file.stem().string());
    if (names.back() == name) return file;
  }
  throw std::invalid_argument("no experiment is called " + io::printable(name) + io::did_you_mean(name, names) +
                              "; `cyfa experiment --list` lists them, and a path names a recipe of your own (.toml)");
}

int list() {
  size_t width = 0;
  const std::vector<fs::path> files = recipes();
  for (const fs::path& file : files) width = std::max(width, file.stem().string().size());
  for (const fs::path& file : files) {
    std::string scales;
    for (const std::string& scale : Experiment::scales(file)) scales += (scales.empty() ? "" : ", ") + scale;
    std::cout << text("%-*s  %s (%s)\n", static_cast<int>(width), file.stem().c_str(), Experiment::title_of(file).c_str(), scales.c_str());
  }
  return kDone;
}

std::string hex(uint64_t value) { return text("%016llx", static_cast<unsigned long long>(value)); }

// The models of --models, [NAME=]DIR, with the hashes by which their runs are known. In the settings they are the variants of the
// experiment.
Json models_of(const std::vector<std::string>& words) {
  Json models = Json::array();
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    const std::string given = equals == std::string::npos ? word : word.substr(equals + 1);
    fs::path folder = fs::absolute(checkpoint_folder(given)).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    const std::string name = equals == std::string::npos ? fs::path(given).lexically_normal().filename().string() : word.substr(0, equals);
    if (name.empty() || std::any_of(models.begin(), models.end(), [&](const Json& m) { return m["name"] == name; }))
      throw std::invalid_argument("--models: wanted NAME=DIR with a different name for each model; " + io::printable(word) + " has " +
                                  (name.empty() ? "none" : "that of another"));
    const CausalLM model = load_checkpoint(folder);
    const std::unique_ptr<Tokenizer> tokenizer = checkpoint_tokenizer(folder, model.config());
    models.push_back({{"name", name},
                      {"folder", folder.string()},
                      {"hash", hex(fingerprint(model))},
                      {"tokenizer", hex(tokenizer->hash())},
                      {"parameters", model.table().numel()}});
  }
  return models;
}

// What the results say the experiment was, where the options do not say it anew.
void settle(Options& options, Results& results, const fs::path& recipe) {
  Json& settings = results.settings;
  if (options.scale.empty())
    options.scale = settings.value("scale", Experiment::scales(recipe).empty() ? "small" : Experiment::scales(recipe).front());
  if (options.set.empty()) {
    for (const Json& one : settings.value("set", Json::array())) options.set.push_back(one.get<std::string>());
  } else if (options.set.size() == 1 && options.set[0].empty()) {
    options.set.clear();
  }
  settings["scale"] = options.scale;
  settings["set"] = options.set;
  if (options.models.size() == 1 && options.models[0].empty()) {
    settings.erase("models");
  } else if (!options.models.empty()) {
    settings["models"] = models_of(options.models);
  }
}

// Whether runs of the experiment train on text.
bool trains_on_text(const Experiment& e) {
  return e.kind == Kind::kText || (e.kind == Kind::kNeedles && e.variants.front().model.is_null());
}

// The recipe, with the models that are given in place of its variants.
Experiment read_experiment(const Options& options, const Results& results, const fs::path& recipe) {
  Experiment e = Experiment::read(recipe, options.scale, options.set);
  if (!results.settings.contains("models")) return e;
  if (e.kind != Kind::kNeedles) throw std::invalid_argument("--models is for experiments with needles; " + e.name + " trains its models");
  e.variants.clear();
  for (const Json& model : results.settings["models"]) {
    experiment::Variant v;
    v.name = model["name"].get<std::string>();
    v.model = model;
    e.variants.push_back(std::move(v));
  }
  return e;
}

// The hashes of the texts, which are part of the runs' keys; those of the stored settings if no folder is named.
Json data_facts(const Options& options, const Experiment& e, const Results& results) {
  if (!trains_on_text(e)) return nullptr;
  if (options.data.empty()) {
    if (results.settings.contains("data")) return results.settings["data"];
    throw std::invalid_argument("--data is missing, wanted a folder with the folders train and valid that `cyfa prepare` has written");
  }
  const TokenData train = TokenData::open(fs::path(options.data) / "train"), valid = TokenData::open(fs::path(options.data) / "valid");
  return {
      {"train", hex(train.hash())}, {"tokens", train.tokens()}, {"validation", hex(valid.hash())}, {"validation_tokens", valid.tokens()}};
}

class Session {
 public:
  Session(const Options& options, const fs::path& folder, const Experiment& e, const Plan& plan, Results& results)
      : options_(options), folder_(folder), e_(e), plan_(plan), results_(results), workers_(static_cast<size_t>(options.jobs)) {
    const int cpus = options.threads > 0 ? options.threads : usable_cpus();
    threads_ = std::max(1, options.threads > 0 ? cpus : cpus / options.jobs);
  }

  void print_plan() const {
    const int64_t all = plan_.total(), done = plan_.finished(results_);
    std::cout << text("%s, scale %s: %zu variants", e_.name.c_str(), e_.scale.c_str(), e_.variants.size());
    if (e_.kind == Kind::kSpeed) {
      std::cout << text(", %zu lengths", e_.speed.lengths.size() + e_.speed.contexts.size());
    } else if (e_.variants.front().model.is_null()) {
      std::cout << text(", %zu learning rates, %zu seeds", e_.rates.size(), e_.seeds.size());
    }
    std::cout << text(": %lld runs, %lld finished before\n", static_cast<long long>(all), static_cast<long long>(done));
    if (const double tokens = plan_.tokens_per_run(); tokens > 0) {
      std::cout << text("%s tokens a run, %s to go; how long that takes is known once the first run has a speed\n",
                        count_text(tokens).c_str(), count_text(tokens * static_cast<double>(all - done)).c_str());
    }
    for (const experiment::Variant& v : e_.variants) {
      int64_t have = 0;
      for (const Run& run : plan_.all_runs(v, results_)) have += results_.find(run) != nullptr ? 1 : 0;
      const int64_t want = plan_.total(v);
      if (!options_.quiet)
        std::cout << text("  %-24s %lld of %lld\n", v.name.c_str(), static_cast<long long>(have), static_cast<long long>(want));
    }
    std::cout << std::flush;
  }

  // Makes the missing runs. Returns an exit status.
  int run() {
    start_ = said_ = Clock::now();
    const GracefulStop stop(options_.quiet ? nullptr : kStopping);
    while (true) {
      const bool late = options_.minutes > 0 && seconds() > 60 * options_.minutes;
      if ((late || stop.requested() || !error_.empty()) && !ending_) {
        ending_ = true;
        if (late && error_.empty() && !options_.quiet) note("the time is up: stopping the runs, with checkpoints");
        for (Worker& w : workers_) {
          if (w.run) w.process->signal(SIGTERM);
        }
      }
      if (!ending_) assign();
      if (under_way_.empty()) break;
      listen();
      progress();
    }
    clear_line();
    for (Worker& w : workers_) {
      if (w.process) w.process->close_input();
    }
    for (Worker& w : workers_) {
      if (w.process && !w.process->ended()) w.process->wait();
    }
    if (!error_.empty()) throw std::runtime_error(error_);
    return plan_.next(results_, {}) ? kStopped : kDone;
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void assign() {
    for (Worker& w : workers_) {
      if (w.run) continue;
      const std::optional<Run> run = plan_.next(results_, under_way_);
      if (!run) return;
      under_way_.insert(run->hash());
      const fs::path data(options_.data);
      w.begin(*run,
              {.folder = folder_ / "runs" / run->folder(),
               .data = data / "train",
               .validation = data / "valid",
               .model = model_of(*run),
               .device = options_.device,
               .save_minutes = e_.train.save_minutes,
               .keep = options_.keep || (e_.kind == Kind::kNeedles && run->key["kind"] == "text")},
              threads_);
    }
  }

  // The model that a run with needles takes: a given one, or one that this or another experiment in the folder has kept. Empty if the run
  // has to train it.
  fs::path model_of(const Run& run) const {
    if (run.key.contains("model")) {
      for (const experiment::Variant& v : e_.variants) {
        if (v.name == run.variant) return v.model["folder"].get<std::string>();
      }
    }
    if (!run.key.contains("run") || fs::exists(folder_ / "runs" / run.folder())) return {};
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fs::absolute(folder_).lexically_normal().parent_path(), error)) {
      const fs::path kept = entry.path() / "runs" / run.folder();
      if (fs::exists(kept, error)) return kept;
    }
    return {};
  }

  // The models of a variant are kept until needles have been looked for with the best of them.
  void drop_models(const std::string& variant) const {
    if (options_.keep || e_.kind != Kind::kNeedles) return;
    for (const experiment::Variant& v : e_.variants) {
      const std::vector<Run> all = plan_.all_runs(v, results_);
      if (v.name != variant || !std::all_of(all.begin(), all.end(), [&](const Run& run) { return results_.find(run) != nullptr; }))
        continue;
      for (const Run& run : all) fs::remove_all(folder_ / "runs" / run.folder());
    }
  }

  // Waits a moment for what the workers say.
  void listen() {
    std::vector<pollfd> descriptors;
    std::vector<Worker*> of;
    for (Worker& w : workers_) {
      if (!w.process || w.process->ended()) continue;
      descriptors.push_back({w.process->output(), POLLIN, 0});
      of.push_back(&w);
    }
    if (poll(descriptors.data(), descriptors.size(), 200) <= 0) return;
    for (size_t i = 0; i < of.size(); ++i) {
      if (descriptors[i].revents == 0) continue;
      for (const std::string& line : of[i]->process->lines()) hear(*of[i], Json::parse(line));
      if (of[i]->process->ended()) lost(*of[i]);
    }
  }

  void hear(Worker& w, const Json& line) {
    if (line.contains("step")) {
      w.step = line["step"].get<int64_t>();
      w.steps = line["steps"].get<int64_t>();
      w.tokens_per_s = line["tokens_per_s"].get<double>();
      return;
    }
    const Run run = *w.run;
    under_way_.erase(run.hash());
    w.run.reset();
    if (line.contains("error")) {
      error_ = run.label() + ": " + line["error"].get<std::string>();
    } else if (line.contains("result")) {
      Json result = line["result"];
      result["jobs"] = options_.jobs;
      results_.add(run, result);
      drop_models(run.variant);
      ++made_;
      const int64_t all = plan_.total(), done = plan_.finished(results_);
      const double left = seconds() / static_cast<double>(made_) * static_cast<double>(all - done);
      note(text("[%lld/%lld] %s: %s in %s%s", static_cast<long long>(done), static_cast<long long>(all), run.label().c_str(),
                outcome(result).c_str(), duration(result.value("seconds", 0.0)).c_str(),
                done < all ? (", about " + duration(left) + " left").c_str() : ""));
    }
  }

  void lost(Worker& w) {
    const std::string problem = w.process->wait();
    if (w.run) {
      // A worker that is told to stop while it still starts ends by the signal; it has nothing to save.
      if (!ending_) error_ = w.run->label() + ": its process " + (problem.empty() ? "ended early" : problem);
      under_way_.erase(w.run->hash());
      w.run.reset();
    }
    w.process.reset();
  }

  static std::string outcome(const Json& result) {
    if (result.contains("failed")) return "failed, " + result["failed"].get<std::string>();
    if (result.contains("needles")) {
      double most = 0;
      for (const auto& [task, rows] : result["needles"].items()) {
        for (const Json& row : rows) most = std::max(most, row.value("found", 0.0));
      }
      return text("at most %.1f%% found", most);
    }
    if (result.contains("accuracy")) return text("%.1f%% correct", 100 * result["accuracy"].get<double>());
    if (result.contains("loss")) return text("loss %.4f", result["loss"].get<double>());
    if (result.contains("rows") && !result["rows"].empty()) {
      const Json& row = result["rows"].back();
      return text("%.3g ms, %.0f tokens/s", row.value("ms", 0.0), row.value("tokens_per_s", 0.0));
    }
    return "done";
  }

  bool terminal() const { return isatty(STDERR_FILENO) == 1; }
  void clear_line() const {
    if (!options_.quiet && terminal()) std::cerr << "\r\x1b[K" << std::flush;
  }
  void note(const std::string& words) const {
    if (options_.quiet) return;
    clear_line();
    std::cerr << words << '\n' << std::flush;
  }

  void progress() {
    if (options_.quiet) return;
    double speed = 0;
    std::string words;
    size_t running = 0;
    for (const Worker& w : workers_) {
      if (!w.run) continue;
      ++running;
      speed += w.tokens_per_s;
      words += (words.empty() ? "" : "; ") + w.run->label() +
               (w.steps > 0 ? text(" %lld/%lld", static_cast<long long>(w.step), static_cast<long long>(w.steps)) : "");
    }
    if (!estimated_ && speed > 0 && e_.kind == Kind::kText &&
        std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return !w.run || w.step >= 10; })) {
      estimated_ = true;
      const double left = plan_.tokens_per_run() * static_cast<double>(plan_.total() - plan_.finished(results_));
      note(text("%s tokens/s by %zu runs at a time: about %s for everything", short_count(speed).c_str(), running,
                duration(left / speed).c_str()));
    }
    const Clock::time_point now = Clock::now();
    if (!terminal() || std::chrono::duration<double>(now - said_).count() < 0.5) return;
    said_ = now;
    std::cerr << "\r\x1b[K" << words.substr(0, 150) << std::flush;
  }

  const Options& options_;
  fs::path folder_;
  const Experiment& e_;
  const Plan& plan_;
  Results& results_;
  std::vector<Worker> workers_;
  std::set<std::string> under_way_;
  int threads_ = 1;
  int64_t made_ = 0;
  bool ending_ = false, estimated_ = false;
  std::string error_;
  Clock::time_point start_, said_;
};

int run_experiment(Options options) {
  if (options.worker) return work();
  if (options.list) return list();
  if (options.name.empty()) throw std::invalid_argument("the name of an experiment is missing; `cyfa experiment --list` lists them");
  const fs::path recipe = recipe_file(options.name), folder = fs::path(options.out) / recipe.stem();
  Results results(folder);
  settle(options, results, recipe);
  const Experiment e = read_experiment(options, results, recipe);
  const Json data = data_facts(options, e, results);
  if (!data.is_null()) results.settings["data"] = data;
  if (e.kind == Kind::kSpeed && options.jobs > 1)
    throw std::invalid_argument("--jobs is for training; runs that are timed are made one by one");
  const Plan plan(e, data.is_null() ? Json(nullptr) : Json{{"train", data["train"]}, {"validation", data["validation"]}}, options.device);
  results.share_with_neighbours();
  Session session(options, folder, e, plan, results);
  session.print_plan();
  if (options.plan) return kDone;
  int status = kDone;
  fs::create_directories(folder);
  const io::FolderLock lock(folder, "another `cyfa experiment`");
  if (!options.report && plan.finished(results) < plan.total()) {
    if (trains_on_text(e) && options.data.empty())
      throw std::invalid_argument("--data is missing, wanted the folder with train and valid that the earlier runs were made with");
    parse_device(options.device);
    results.write();
    status = session.run();
    std::error_code error;
    fs::remove(folder / "runs", error);  // if nothing is left in it
  }
  const WriteGuard guard;
  results.write();
  const std::vector<std::string> files = experiment::write_report(folder, e, plan, results);
  std::cout << (folder / files.front()).string() << '\n';
  return status;
}

}  // namespace

void add_experiment(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("experiment", "Repeat a comparison of the paper, with learning rates, seeds and a report.");
  auto options = std::make_shared<Options>();
  command->add_option("name", options->name, "Name of an experiment (--list), or a recipe file of your own (.toml)")->type_name("NAME");
  command->add_flag("--list", options->list, "List the experiments and their scales");
  command->add_option("--scale", options->scale, "Scale of models and training")
      ->check(CLI::IsMember({"small", "paper"}))
      ->default_str("that of the earlier runs, else small");
  command->add_option("--data", options->data, "Folder with the folders train and valid, both written by `cyfa prepare` with one tokenizer")
      ->type_name("DIR")
      ->default_str("none");
  command
      ->add_option("-o,--out", options->out,
                   "Folder in which the experiment gets a folder of its name; finished runs of all experiments in it are shared")
      ->type_name("DIR")
      ->capture_default_str();
  command
      ->add_option("--models", options->models,
                   "For experiments with needles: checkpoints that are evaluated in place of models that it trains; NAME may be left out, "
                   "\"\" for none")
      ->type_name("NAME=DIR")
      ->default_str("those of the earlier runs, else none");
  command
      ->add_option(
          "--set", options->set,
          "Change the recipe: a value of the training (as for `cyfa train`), rates=, seeds=, lengths=, contexts= or only= with a list, "
          "epochs=, samples=; \"\" for none")
      ->type_name("KEY=VALUE")
      ->default_str("those of the earlier runs");
  command->add_option("--jobs", options->jobs, "Runs at the same time, each in a process of its own; small models do not fill a GPU")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--minutes", options->minutes, "Stop after this time, with checkpoints; 0 for no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--plan", options->plan, "Print the plan and do nothing");
  command->add_flag("--report", options->report, "Make no runs; write the report from the finished ones");
  command->add_flag("--keep", options->keep, "Keep the trained models, in runs/ of the experiment's folder");
  add_device(command, &options->device);
  add_threads(command, &options->threads);
  command->add_flag("-q,--quiet", options->quiet, "Print no progress on the standard error");
  command->add_flag(kWorkerOption, options->worker)->group("");
  command->footer("Exit status: 0 done, 2 bad input or an error (finished runs stay), 3 stopped by a signal or --minutes, after saving.");
  command->callback([&action, options] { action = [options] { return run_experiment(*options); }; });
}

}  // namespace cyfa::app
