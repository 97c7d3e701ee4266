// cyfa models: lists configs and model types; no parameters are allocated.
#include <algorithm>
#include <iostream>

#include "apps/commands.h"
#include "apps/options.h"
#include "apps/output.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/describe.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> paths;
  bool kinds = false, describe = false;
  std::string json;
};

// The configs that come with the program: in the folder above the program's, or in the working directory.
fs::path own_configs() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (const fs::path& folder : {program.parent_path().parent_path() / "configs", fs::path("configs")}) {
    if (fs::is_directory(folder, error)) return folder;
  }
  throw std::runtime_error(
      "found no folder configs, neither beside the program's folder nor in the working directory; name config files or folders of them");
}

std::vector<fs::path> config_files(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  const auto add_folder = [&](const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
  };
  if (paths.empty()) add_folder(own_configs());
  for (const fs::path path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
    } else if (fs::exists(path / "config.json")) {
      files.push_back(path / "config.json");
    } else {
      add_folder(path);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Lists the registered model types.
int run_kinds(const Options& options) {
  Json rows = Json::array();
  for (const MixerKind& kind : mixer_kinds()) {
    const MixerFacts& f = kind.facts;
    rows.push_back({{"model_type", kind.model_type},
                    {"architecture", kind.architecture},
                    {"about", f.about},
                    {"recurrence", f.recurrence},
                    {"state", f.state},
                    {"cost", f.cost},
                    {"reference", f.reference},
                    {"origin", f.origin}});
  }
  write_rows(options.json, rows);
  if (!prints_text(options.json)) return kDone;
  std::cout << text("%-24s %-58s %-22s %s\n", "model_type", "about", "state/layer", "checkpoints of");
  for (const Json& row : rows) {
    const auto column = [&](const char* key) { return row[key].get<std::string>(); };
    std::cout << text("%-24s %-58s %-22s %s\n", column("model_type").c_str(), column("about").c_str(), column("state").c_str(),
                      column("origin").c_str());
  }
  return kDone;
}

int run_describe(const Options& options) {
  Json rows = Json::array();
  for (const fs::path& file : config_files(options.paths)) rows.push_back(describe(CausalLM(ModelConfig::read(file))));
  write_rows(options.json.empty() ? "-" : options.json, rows);
  return kDone;
}

int run_models(const Options& options) {
  if (options.kinds) return run_kinds(options);
  if (options.describe) return run_describe(options);
  Json rows = Json::array();
  for (const fs::path& file : config_files(options.paths)) {
    const CausalLM model(ModelConfig::read(file));
    const ModelConfig& c = model.config();
    rows.push_back({{"config", file.filename() == "config.json" ? file.parent_path().filename().string() : file.stem().string()},
                    {"model_type", c.kind->model_type},
                    {"parameters", model.table().numel()},
                    {"hidden_size", c.backbone.hidden_size},
                    {"layers", c.backbone.layers},
                    {"vocab_size", c.vocab_size},
                    {"state_scalars_per_layer", model.memory_scalars()},
                    {"state_bytes_per_layer", model.state_bytes() / c.backbone.layers},
                    {"state_bytes_per_sequence", model.state_bytes()},
                    {"forward_flops_per_token", model.forward_flops_per_token()}});
  }
  write_rows(options.json, rows);
  if (!prints_text(options.json)) return kDone;
  std::cout << text("%-18s %-24s %10s %7s %6s %14s %12s %12s\n", "config", "model_type", "parameters", "width", "layers", "state/layer",
                    "state/seq", "flops/token");
  for (const Json& row : rows) {
    const auto state = row["state_scalars_per_layer"].get<int64_t>();
    std::cout << text("%-18s %-24s %8.1f M %7lld %6lld %14s %9.2f MB %10.2f G\n", row["config"].get<std::string>().c_str(),
                      row["model_type"].get<std::string>().c_str(), row["parameters"].get<double>() * 1e-6,
                      static_cast<long long>(row["hidden_size"].get<int64_t>()), static_cast<long long>(row["layers"].get<int64_t>()),
                      state > 0 ? std::to_string(state).c_str() : "grows", row["state_bytes_per_sequence"].get<double>() * 1e-6,
                      row["forward_flops_per_token"].get<double>() * 1e-9);
  }
  std::cout
      << "state/layer: numbers in the recurrent state of one layer; state/seq: all memory of a sequence except caches that grow with it\n";
  return kDone;
}

}  // namespace

void add_models(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("models", "List model configs: parameters, recurrent state, operations per token.");
  auto options = std::make_shared<Options>();
  command->add_option("paths", options->paths, "Config files, checkpoint directories, or folders of config files")
      ->type_name("PATH")
      ->default_str("the configs that come with the program");
  command
      ->add_flag("--kinds", options->kinds,
                 "List the model types instead of configs: what they are, their state, whose checkpoints they read")
      ->excludes("paths");
  command->add_flag("--describe", options->describe, "Print what the configs describe as JSON: parameters, states, layers, defaults")
      ->excludes("--kinds");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_models(*options); }; });
}

}  // namespace cyfa::app
