// cyfa plan: predicts memory, time and cost of training a model on many GPUs. No parameters are allocated.
#include <iostream>

#include "apps/commands.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/provided.h"
#include "cyfa/train/plan.h"

namespace cyfa::app {
namespace {

struct Options {
  std::string model, machine = "h100", json;
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

int run_plan(const Options& options) {
  const CausalLM model(ModelConfig::read(config_path(options.model)));
  const Machine& machine = machine_of(options.machine);
  const std::vector<Layout> layouts = plan(ModelCosts::of(model), machine, options.request);
  Json rows = Json::array();
  for (const Layout& l : layouts) rows.push_back(row_of(l));
  write_rows(options.json, rows);
  if (!prints_text(options.json)) return kDone;
  const PlanRequest& r = options.request;
  std::cout << text("%s on %lld %s: %.3g M parameters, sequences of %lld tokens, %.3g tokens a step, %.3g in all; a GPU at %.0f%% of %.0f "
                    "TFLOP/s\n",
                    options.model.c_str(), static_cast<long long>(r.gpus), machine.name.c_str(),
                    static_cast<double>(model.table().numel()) * 1e-6, static_cast<long long>(r.context), r.step_tokens, r.tokens,
                    100 * r.share, machine.peak * 1e-12)
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
  command->add_option("--mfu", r.share, "Share of the peak that a GPU reaches by itself, from `cyfa bench train` on it")
      ->type_name("SHARE")
      ->default_str("0.47");
  command->add_flag("--all", options->all, "List every layout, also those that do not run");
  add_json(command, &options->json);
  command->footer(
      "cut: ranks over which a sequence is cut (context_ranks); again: activations are recomputed. The predictions are those of an\n"
      "analytic model (docs/scaling.md), not measurements.\n\n"
      "Exit status: 0 done, 1 no layout runs, 2 bad input or an error.");
  command->callback([&action, options] { action = [options] { return run_plan(*options); }; });
}

}  // namespace cyfa::app
