// cyfa plan: predicts memory, time and cost of training a model on many GPUs. No parameters are allocated.
#include <cmath>
#include <iostream>
#include <set>

#include "apps/commands.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/provided.h"
#include "cyfa/io/file_error.h"
#include "cyfa/io/json.h"
#include "cyfa/train/plan.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string model, machine = "h100", measured, json;
  PlanRequest request;
  bool all = false;
};

double gib(double bytes) { return bytes / (1 << 30); }

Json row_of(const Layout& l) {
  return {{"layout", l.way},
          {"context_ranks", l.context_ranks},
          {"recompute", l.recompute},
          {"sequences_per_part", l.sequences},
          {"parts", l.parts},
          {"parameters_gib", gib(l.parameters)},
          {"gradients_gib", gib(l.gradients)},
          {"optimizer_gib", gib(l.optimizer)},
          {"activations_gib", gib(l.activations)},
          {"memory_gib", gib(l.memory())},
          {"step_ms", l.step() * 1e3},
          {"exposed_ms", l.exposed * 1e3},
          {"tokens_per_s", l.tokens_per_s},
          {"gpu_hours", l.gpu_hours},
          {"cyfa_train", l.today},
          {"refusal", l.refusal}};
}

// By how much a measured step took longer than this model predicts for it: the geometric mean of the rows that `cyfa bench train --json`
// has written for `model`, or of such rows in a file of bench/results.
struct Correction {
  double factor = 1;
  int steps = 0;  // measured
};
Correction correction_of(const Options& options, const ModelCosts& costs, const Machine& machine) {
  const std::string name = name_of(config_path(options.model));
  const Json file = io::read_json(options.measured, {.what = "a file of measurements"});
  const Json& rows = file.is_object() && file.contains("rows") ? file["rows"] : file;
  Correction c;
  double logs = 0;
  std::set<std::string> others;
  for (const Json& row : rows.is_array() ? rows : Json::array()) {
    const auto has = [&](const char* key, const char* value) { return !row.contains(key) || row[key] == value; };
    const auto count = [&](const char* key) {
      return row.contains(key) && row[key].is_number_integer() ? std::max(row[key].get<double>(), 1.0) : 1.0;
    };
    if (!row.is_object() || row.value("op", Json()) != "train" || !has("impl", "cyfa") || !has("dtype", "bf16") || !has("device", "cuda")) {
      continue;
    }
    const auto is = [&](const char* key) { return row.contains(key) && row[key] == true; };
    if (row.contains("ranks") || is("recompute_rows") || is("recompute_mlp")) continue;  // what the model does not know
    if (!row.contains("model") || !row.contains("tokens_per_s") || !row["tokens_per_s"].is_number()) continue;
    const double rate = row["tokens_per_s"].get<double>(), tokens = count("B") * count("T");
    if (row["model"] != name || !(rate > 0)) {
      if (row["model"].is_string()) others.insert(row["model"].get<std::string>());
      continue;
    }
    const bool again = row.contains("recompute") && row["recompute"] == true;
    logs += std::log(tokens / rate / computing_seconds(costs, machine, tokens, count("accumulate"), again, costs.parameters));
    ++c.steps;
  }
  if (c.steps == 0) {
    std::string has;
    for (const std::string& other : others) has += (has.empty() ? ", but of " : ", ") + other;
    throw io::FileError(options.measured, "has no training step of " + name + " on a GPU in bf16" + has +
                                              "; measure with: cyfa bench train " + name + " --device cuda --dtype bf16 --json FILE");
  }
  c.factor = std::exp(logs / c.steps);
  return c;
}

int run_plan(Options options) {
  const CausalLM model(ModelConfig::read(config_path(options.model)));
  const Machine& machine = machine_of(options.machine);
  const ModelCosts costs = ModelCosts::of(model);
  Correction correction;
  if (!options.measured.empty()) correction = correction_of(options, costs, machine);
  options.request.correction = correction.factor;
  const std::vector<Layout> layouts = plan(costs, machine, options.request);
  Json rows = Json::array();
  for (const Layout& l : layouts) {
    rows.push_back(row_of(l));
    if (correction.steps > 0) rows.back()["correction"] = correction.factor;
  }
  write_rows(options.json, rows);
  if (!prints_text(options.json)) return kDone;
  const PlanRequest& r = options.request;
  const std::string rates = r.share > 0 ? text("a GPU at %.0f%% of %.0f TFLOP/s", 100 * r.share, machine.peak * 1e-12)
                                        : std::string("a GPU at the rates measured on an H200");
  std::cout << text("%s on %lld %s: %.3g M parameters, sequences of %lld tokens, %.3g tokens a step, %.3g in all; %s\n",
                    options.model.c_str(), static_cast<long long>(r.gpus), machine.name.c_str(),
                    static_cast<double>(model.table().numel()) * 1e-6, static_cast<long long>(r.context), r.step_tokens, r.tokens,
                    rates.c_str())
            << (correction.steps == 0 ? std::string()
                                      : text("computing takes %.3f times as long as predicted, by %d measured steps in %s\n",
                                             correction.factor, correction.steps, options.measured.c_str()))
            << text("%-8s %4s %6s %6s %5s | %6s %6s %6s %6s %7s | %9s %8s %11s %10s\n", "layout", "cut", "again", "parts", "seqs", "param",
                    "grad", "optim", "activ", "GiB", "step, ms", "exposed", "tokens/s", "GPU hours");
  int shown = 0;
  constexpr int kShown = 12;
  for (const Layout& l : layouts) {
    if (!options.all && (++shown > kShown || !l.refusal.empty())) continue;
    std::cout << text("%-8s %4lld %6s ", l.way.c_str(), static_cast<long long>(l.context_ranks), l.recompute ? "yes" : "no");
    if (!l.refusal.empty()) {
      std::cout << l.refusal << '\n';
      continue;
    }
    std::cout << text("%6lld %5lld | %6.1f %6.1f %6.1f %6.1f %7.1f | %9.1f %8.1f %11.0f %10.0f%s\n", static_cast<long long>(l.parts),
                      static_cast<long long>(l.sequences), gib(l.parameters), gib(l.gradients), gib(l.optimizer), gib(l.activations),
                      gib(l.memory()), l.step() * 1e3, l.exposed * 1e3, l.tokens_per_s, l.gpu_hours, l.today ? "" : "  (FSDP2, Python)");
  }
  if (layouts.front().refusal.empty()) return kDone;
  std::cout << "no layout runs: " << layouts.front().refusal << "; more GPUs, a larger step, or a shorter context would\n";
  return kCheckFailed;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("plan", "Predict memory, time and cost of training a model on many GPUs.");
  auto options = std::make_shared<Options>();
  PlanRequest& r = options->request;
  command->add_option("model", options->model, "Model, by name or config file")->required()->type_name("MODEL");
  command->add_option("--gpus", r.gpus, "GPUs, in whole nodes beyond one")->type_name("N")->capture_default_str();
  command->add_option("--context", r.context, "Tokens per sequence")->type_name("N")->capture_default_str();
  command->add_option("--batch-tokens", r.step_tokens, "Tokens per optimizer step")->type_name("N")->default_str("524288");
  command->add_option("--tokens", r.tokens, "Tokens of the whole run")->type_name("N")->default_str("15e9");
  command->add_option("--machine", options->machine, "Machine: h100 or h200, nodes of 8 with NVLink and 400 Gb/s of network a GPU")
      ->type_name("NAME")
      ->capture_default_str();
  auto* measured =
      command
          ->add_option("--measured", options->measured,
                       "Measured steps of this model on this machine, as `cyfa bench train --json FILE` writes them: corrects the "
                       "time of computing")
          ->type_name("FILE")
          ->default_str("none");
  command->add_option("--mfu", r.share, "Share of the peak that a GPU reaches by itself, in place of the rates measured on an H200")
      ->type_name("SHARE")
      ->default_str("none")
      ->excludes(measured);
  command->add_flag("--all", options->all, "List every layout, also those that do not run");
  add_json(command, &options->json);
  command->footer(
      "cut: ranks over which a sequence is cut (context_ranks); again: activations are recomputed. The predictions are those of an\n"
      "analytic model (docs/scaling.md), not measurements. They take the rates of the sm90 engine for whole sequences.\n\n"
      "Exit status: 0 done, 1 no layout runs, 2 bad input or an error.");
  command->callback([&action, options] { action = [options] { return run_plan(*options); }; });
}

}  // namespace cyfa::app
