// The program inside of Python, and where its configs are: python/cyfa/__main__.py and _library.py call these.
#include "apps/program.h"

#include <torch/library.h>

#include "apps/provided.h"

// Runs the command of argv[1], .. as the executable does; argv[0] is the path of the Python interpreter. Once in a process; returns the
// exit status.
extern "C" int cyfa_program(int argc, char** argv);

int cyfa_program(int argc, char** argv) { return cyfa::app::run_program(argc, argv, {argv[0], "-m", "cyfa"}); }

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  library.def("shared_folder() -> str", []() -> std::string { return cyfa::app::provided_folder().string(); });
}
