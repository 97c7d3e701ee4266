// The `cyfa` program: parses the arguments, runs one command, and turns every exception into one line and an exit status.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>
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
  return cyfa::app::kBadInput;
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

int run(int argc, char** argv) {
  keep_freed_memory();
  CLI::App app(kAbout, "cyfa");
  app.formatter(cyfa::app::help_formatter());
  app.footer(kStatuses);  // commands inherit it
  app.set_version_flag("--version", std::string("cyfa ") + CYFA_VERSION);
  app.group("Commands")->require_subcommand(1);
  cyfa::app::Action action;
  cyfa::app::add_doctor(app, action);
  cyfa::app::add_verify(app, action);
  cyfa::app::add_bench(app, action);
  cyfa::app::add_show(app, action);
  cyfa::app::add_models(app, action);
  cyfa::app::add_init(app, action);
  cyfa::app::add_generate(app, action);
  cyfa::app::add_prepare(app, action);
  cyfa::app::add_train(app, action);
  cyfa::app::add_probe(app, action);
  cyfa::app::add_demo(app, action);
  app.footer(kFooter);
  cyfa::app::add_examples(app);
  cyfa::app::check_values(app);
  if (argc == 1) {
    std::cerr << app.help();
    return cyfa::app::kBadInput;
  }
  const std::vector<std::string> words = cyfa::app::with_help(app, {argv + 1, argv + argc});
  const std::string unknown = cyfa::app::unknown_command(app, words);
  if (!unknown.empty()) return fail(unknown);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them in reverse
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    return fail(cyfa::app::usage_error(app, e, words));
  }
  cyfa::app::use_threads(0, "");
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    cyfa::app::watch_signals();
    cyfa::app::report_lost_pages();
    const int status = run(argc, argv);
    std::cout.flush();
    return std::cout ? status : fail("writing to the standard output failed");
  } catch (const std::exception& e) {
    return fail(cyfa::app::error_text(e));
  }
}
