// cyfa models: lists configs and model types; no parameters are allocated.
#include <algorithm>
#include <iostream>

#include "apps/amounts.h"
#include "apps/commands.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/provided.h"
#include "cyfa/io/file_error.h"
#include "cyfa/model/describe.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> models;
  bool kinds = false, describe = false;
  std::string json;
};

// The config files that `paths` mean: files, checkpoint directories, folders of config files and names; by default all that come with the
// program.
std::vector<fs::path> config_files(const std::vector<std::string>& paths) {
  if (paths.empty()) return provided_configs();
  std::vector<fs::path> files;
  for (const std::string& given : paths) {
    const fs::path path = model_path(given);
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    if (fs::exists(path / "config.json")) {
      files.push_back(path / "config.json");
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
    if (files.size() == before) throw io::FileError(path, "holds no config.json and no other config file (.json)");
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  }
  return files;
}

// Bytes by which the state of one sequence grows with every token: key-value caches without a window.
int64_t growth_bytes(const CausalLM& model) {
  int64_t bytes = 0;
  for (const CausalLM::Layer& layer : model.layers()) {
    for (const StateSpec& spec : layer.block->mixer().state()) {
      if (spec.grows)
        bytes += c10::multiply_integers(spec.shape.begin() + 1, spec.shape.end()) * static_cast<int64_t>(c10::elementSize(spec.dtype));
    }
  }
  return bytes;
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
  for (const fs::path& file : config_files(options.models)) rows.push_back(describe(CausalLM(ModelConfig::read(file))));
  write_rows(options.json.empty() ? "-" : options.json, rows);
  return kDone;
}

int run_models(const Options& options) {
  if (options.kinds) return run_kinds(options);
  if (options.describe) return run_describe(options);
  Json rows = Json::array();
  for (const fs::path& file : config_files(options.models)) {
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
                    {"state_bytes_per_token", growth_bytes(model)},
                    {"forward_flops_per_token", model.forward_flops_per_token()}});
  }
  write_rows(options.json, rows);
  if (!prints_text(options.json)) return kDone;
  std::cout << text("%-18s %-24s %10s %6s %6s %11s %11s  %s\n", "config", "model_type", "parameters", "width", "layers", "flops/token",
                    "state/layer", "state of a sequence");
  for (const Json& row : rows) {
    const auto number = [&](const char* key) { return row[key].get<int64_t>(); };
    const int64_t scalars = number("state_scalars_per_layer"), fixed = number("state_bytes_per_sequence");
    const int64_t growth = number("state_bytes_per_token");
    // A cache alone counts its tokens in a few bytes, which are not worth a word.
    const bool cache_alone = growth > 0 && scalars == 0;
    std::string state = cache_alone ? "" : bytes_text(static_cast<double>(fixed));
    if (growth > 0) state += (state.empty() ? "grows: " : ", grows: ") + bytes_text(static_cast<double>(growth)) + " a token";
    std::cout << text("%-18s %-24s %10s %6lld %6lld %11s %11s  %s\n", row["config"].get<std::string>().c_str(),
                      row["model_type"].get<std::string>().c_str(), short_count(row["parameters"].get<double>()).c_str(),
                      static_cast<long long>(number("hidden_size")), static_cast<long long>(number("layers")),
                      short_count(row["forward_flops_per_token"].get<double>()).c_str(),
                      scalars > 0 ? std::to_string(scalars).c_str() : "grows", state.c_str());
  }
  std::cout << "state/layer: numbers in the recurrent state of the first layer; state of a sequence: the bytes of all layers\n";
  return kDone;
}

}  // namespace

void add_models(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("models", "List model configs: parameters, recurrent state, operations per token.");
  auto options = std::make_shared<Options>();
  command
      ->add_option("models", options->models,
                   "Names of models that come with the program, config files, checkpoint directories, or folders of config files")
      ->type_name("MODEL")
      ->default_str("the models that come with the program");
  command
      ->add_flag("--kinds", options->kinds,
                 "List the model types instead of configs: what they are, their state, whose checkpoints they read")
      ->excludes("models");
  command->add_flag("--describe", options->describe, "Print what the configs describe as JSON: parameters, states, layers, defaults")
      ->excludes("--kinds");
  add_json(command, &options->json);
  command->callback([&action, options] { action = [options] { return run_models(*options); }; });
}

}  // namespace cyfa::app
