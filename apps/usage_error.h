// What is wrong with a command line, in words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace cyfa::app {

// `words` without the program's name, with "help" where a command may stand turned into --help at the end: `help bench op`, `bench help`.
std::vector<std::string> with_help(const CLI::App& app, std::vector<std::string> words);

// The message for a word that should name a command and does not; empty if there is none.
std::string unknown_command(const CLI::App& app, const std::vector<std::string>& words);

// The message for `error`, which app.parse() threw for `words`, with a hint which help to read.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words);

}  // namespace cyfa::app
