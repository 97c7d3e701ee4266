// The other processes of a run that torchrun has started (`torchrun ... -m cyfa train`), as Python knows them (python/cyfa/_ranks.py).
#pragma once

#include <functional>
#include <string>

#include "cyfa/parallel/group.h"

namespace cyfa::app {

struct Launcher {
  int rank = 0, ranks = 1;
  int local_rank = 0;  // on this machine
  int restarts = 0;    // how often torchrun has started all ranks again
  // Makes the group of all ranks for tensors on `device` ("cpu" or "cuda"), and groups of `context` successive ranks. Returns the names of
  // both that this rank is in, with a space between. A collective that takes longer than `timeout` seconds fails.
  std::function<std::string(const std::string& device, double timeout, int context)> join;
  // Tells the other ranks that this one cannot go on: because of an error of its `own`, or because a collective has failed. Returns which
  // rank is the cause and why, in words; empty if it is this one.
  std::function<std::string(const std::string& error, bool own)> report;
};

// Set before the program runs; absent if it runs alone.
void launch_by(Launcher launcher);
const Launcher* launcher();

// Throws if torchrun has started this program without Python, several times over, where no rank knows of the others.
void refuse_ranks_without_python();

}  // namespace cyfa::app
