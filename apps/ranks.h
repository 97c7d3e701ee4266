// The other processes of a run that torchrun has started (`torchrun ... -m cyfa train`), as Python knows them (python/cyfa/_ranks.py).
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "cyfa/parallel/group.h"
#include "cyfa/train/recipe.h"

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

// The ranks of a run: all of them, and those that share the tokens of a batch (context parallel). This process alone if it is.
struct Groups {
  Group all, context;

  int readers() const { return all.size() / context.size(); }  // ranks, or groups of ranks, that read batches of their own
  int reader() const { return all.rank() / context.size(); }
};
// Throws std::invalid_argument if the recipe's batch cannot be divided over the ranks.
Groups join_ranks(const Recipe& recipe);

// The recipe's device; on several ranks the GPU of this one.
c10::Device rank_device(const Recipe& recipe);

// Runs `action`. An error ends all ranks: each says what it knows of the cause, before torchrun ends those that hang.
int as_rank(const std::function<int()>& action);

// Throws if torchrun has started this program without Python, several times over, where no rank knows of the others.
void refuse_ranks_without_python();

}  // namespace cyfa::app
