#include "apps/commands.h"

namespace cyfa::app {

void add_bench(CLI::App& app, Action& action) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed, memory and the accuracy of a bf16 state.");
  bench->require_subcommand(1);
  add_bench_op(*bench, action);
  add_bench_decode(*bench, action);
  add_bench_prefill(*bench, action);
  add_bench_load(*bench, action);
  add_bench_train(*bench, action);
  add_bench_state(*bench, action);
}

}  // namespace cyfa::app
