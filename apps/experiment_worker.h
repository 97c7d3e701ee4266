// The processes in which `cyfa experiment` makes its runs. A worker reads one job a line from its standard input and writes JSON lines to its
// standard output: {"step": ...} while it works, then {"result": ...}, {"stopped": true} or {"error": "..."}.
#pragma once

#include <optional>

#include "apps/child.h"
#include "cyfa/experiment/execute.h"

namespace cyfa::app {

// Option of `cyfa experiment` by which this program starts itself as a worker; it is not in the help.
inline constexpr const char* kWorkerOption = "--as-worker";

// Does jobs until the standard input ends. Returns the exit status.
int work();

// A worker as the experiment sees it.
struct Worker {
  std::unique_ptr<Child> process;
  std::optional<experiment::Run> run;  // under way
  int64_t step = 0, steps = 0;
  double tokens_per_s = 0;
  bool stopping = false;

  // Starts the process if there is none, and gives it the run.
  void begin(const experiment::Run& run, const experiment::Place& place, int threads);
};

}  // namespace cyfa::app
