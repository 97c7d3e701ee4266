// The `cyfa` program: parses the arguments, runs one command, and turns every exception into one line and an exit status.
#pragma once

#include <string>
#include <vector>

namespace cyfa::app {

// What the executable and `python -m cyfa` do, once in a process. `again` are the words that start the program again, for commands that
// run others in processes of their own; argv[0] is not read. Returns the exit status.
int run_program(int argc, char** argv, std::vector<std::string> again = {"/proc/self/exe"});

// The words that start the program again: a path, and what else comes before the command.
const std::vector<std::string>& start_words();

}  // namespace cyfa::app
