// The commands of `cyfa`. Each adds itself to the parser; the one that the user names stores its work in `action`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace cyfa::app {

// Exit statuses, the same for every command.
inline constexpr int kDone = 0;
inline constexpr int kCheckFailed = 1;  // something was computed and is not good enough
inline constexpr int kBadInput = 2;     // a file, an option or the machine does not allow the work
inline constexpr int kStopped = 3;      // stopped by a signal after saving: `train` a checkpoint, `generate` its state and JSON

using Action = std::function<int()>;  // returns the exit status

void add_doctor(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_show(CLI::App& app, Action& action);
void add_models(CLI::App& app, Action& action);
void add_init(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_prepare(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_probe(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);
void add_experiment(CLI::App& app, Action& action);
void add_demo(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);

void add_verify_op(CLI::App& verify, Action& action);
void add_verify_model(CLI::App& verify, Action& action);
void add_bench_op(CLI::App& bench, Action& action);
void add_bench_decode(CLI::App& bench, Action& action);
void add_bench_load(CLI::App& bench, Action& action);
void add_bench_prefill(CLI::App& bench, Action& action);
void add_bench_train(CLI::App& bench, Action& action);
void add_bench_state(CLI::App& bench, Action& action);
void add_show_clock(CLI::App& show, Action& action);
void add_show_loss(CLI::App& show, Action& action);
void add_show_curves(CLI::App& show, Action& action);

}  // namespace cyfa::app
