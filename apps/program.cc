#include "apps/program.h"

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "apps/bus_error.h"
#include "apps/commands.h"
#include "apps/error_text.h"
#include "apps/examples.h"
#include "apps/interrupt.h"
#include "apps/options.h"
#include "apps/threads.h"
#include "apps/usage_error.h"
#include "apps/values.h"

namespace cyfa::app {
namespace {

constexpr const char* kAbout =
    "cyfa: Cyclic Flow Attention, a fixed-size memory whose slots a learned clock moves through time.\n"
    "This program creates, trains, checks, measures and runs language models built on it, and the operator itself.";

constexpr const char* kFooter =
    "`cyfa help COMMAND` or `cyfa COMMAND --help` explains a command.\n"
    "Exit status: 0 done; 1 a check failed; 2 bad input or an error; 3 stopped by a signal, after saving.";

// Footer of the commands that have none of their own.
constexpr const char* kStatuses = "Exit status: 0 done, 1 a check failed, 2 bad input or an error.";

int fail(const std::string& message) {
  std::cout.flush();
  std::cerr << "cyfa: error: " << message << '\n';
  return kBadInput;
}

// Every tensor operation allocates its result. By default glibc returns blocks of this size to the system when they are freed and faults
// them in again at the next operation, which costs the portable backward a tenth of its time.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 28);
  mallopt(M_TRIM_THRESHOLD, 1 << 29);
  mallopt(M_TOP_PAD, 1 << 26);
#endif
}

std::vector<std::string>& words_to_start() {
  static std::vector<std::string> words;
  return words;
}

int run(int argc, char** argv) {
  keep_freed_memory();
  CLI::App app(kAbout, "cyfa");
  app.formatter(help_formatter());
  app.footer(kStatuses);  // commands inherit it
  app.set_version_flag("--version", std::string("cyfa ") + CYFA_VERSION);
  app.group("Commands")->require_subcommand(1);
  Action action;
  add_doctor(app, action);
  add_verify(app, action);
  add_bench(app, action);
  add_show(app, action);
  add_models(app, action);
  add_init(app, action);
  add_generate(app, action);
  add_prepare(app, action);
  add_train(app, action);
  add_eval(app, action);
  add_plan(app, action);
  add_experiment(app, action);
  add_probe(app, action);
  add_demo(app, action);
  app.footer(kFooter);
  add_examples(app);
  check_values(app);
  if (argc == 1) {
    std::cerr << app.help();
    return kBadInput;
  }
  const std::vector<std::string> words = with_help(app, {argv + 1, argv + argc});
  const std::string unknown = unknown_command(app, words);
  if (!unknown.empty()) return fail(unknown);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them in reverse
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    return fail(usage_error(app, e, words));
  }
  use_threads(0, "");
  return action();
}

}  // namespace

const std::vector<std::string>& start_words() { return words_to_start(); }

int run_program(int argc, char** argv, std::vector<std::string> again) {
  try {
    words_to_start() = std::move(again);
    watch_signals();
    report_lost_pages();
    const int status = run(argc, argv);
    std::cout.flush();
    return std::cout ? status : fail("writing to the standard output failed");
  } catch (const std::exception& e) {
    return fail(error_text(e));
  }
}

}  // namespace cyfa::app
