// The `cyfa` program: parses the arguments, runs one command, and turns every exception into one line and an exit status.
#include <c10/util/Exception.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <string>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/options.h"

namespace {

constexpr const char* kAbout =
    "cyfa: Cyclic Flow Attention, a fixed-size memory whose slots a learned clock moves through time.\n"
    "This program creates, trains, checks, measures and runs language models built on it, and the operator itself.";

constexpr const char* kExamples =
    "Examples:\n"
    "  cyfa doctor                                    what this build and this machine can do, with a self-check\n"
    "  cyfa verify op tests/vectors/*.safetensors     every backend against stored results\n"
    "  cyfa bench op --pass both                      time one layer's operator beside a plain matrix product\n"
    "  cyfa bench op --op step --B 64                 time one decode step\n"
    "  cyfa show clock --png clock.png                how writes move through the slots\n"
    "  cyfa models                                    the configs that come with the program\n"
    "  cyfa init configs/cyfa-bytes-2m.json DIR       write a checkpoint with random parameters\n"
    "  cyfa generate DIR -p \"Once upon a time\"        continue a text with a checkpoint\n"
    "  cyfa prepare OUT texts/                        turn text files into tokens for training\n"
    "  cyfa train RUN -r recipes/bytes.toml data=OUT  train a model on them\n"
    "  cyfa verify model DIR                          a checkpoint against results stored beside it\n"
    "\n"
    "`cyfa COMMAND --help` explains a command.\n"
    "Exit status: 0 done; 1 a check failed; 2 bad input or an error; 3 stopped by a signal, after saving.";

// Footer of the commands that have none of their own.
constexpr const char* kStatuses = "Exit status: 0 done, 1 a check failed, 2 bad input or an error.";

int fail(const std::string& message) {
  std::cout.flush();
  std::cerr << "cyfa: error: " << message << '\n';
  return cyfa::app::kBadInput;
}

// The command named on the command line, for the hint: "cyfa bench op".
std::string deepest_command(const CLI::App& app) {
  std::string name = "cyfa";
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

// The first word that should name a command and does not; empty if there is none.
std::string unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const std::string word = argv[i];
    const auto commands = at->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty()) break;
    const auto found = std::find_if(commands.begin(), commands.end(), [&](const CLI::App* command) { return command->get_name() == word; });
    if (found == commands.end()) return word;
    at = *found;
  }
  return "";
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
  app.require_subcommand(1);
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
  cyfa::app::add_demo(app, action);
  app.footer(kExamples);
  if (argc == 1) {
    std::cout << app.help();
    return cyfa::app::kBadInput;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    const std::string unknown = unknown_command(app, argc, argv);
    return fail((unknown.empty() ? std::string(e.what()) : "no command is called " + unknown) + "\ntry `" + deepest_command(app) +
                " --help`");
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    cyfa::app::watch_signals();
    const int status = run(argc, argv);
    std::cout.flush();
    return std::cout ? status : fail("writing to the standard output failed");
  } catch (const c10::Error& e) {
    return fail(e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& e) {
    return fail(e.what());
  }
}
