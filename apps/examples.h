// The examples in the help of every command. tests/apps/documents_test.py runs them.
#pragma once

#include <CLI/CLI.hpp>

namespace cyfa::app {

// Puts a section "Examples:" into the help of `app` and of its commands, before what their help ends with.
void add_examples(CLI::App& app);

}  // namespace cyfa::app
