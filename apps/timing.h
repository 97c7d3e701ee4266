// Wall-clock timing on a machine that is never quiet: rounds in which each task runs once, medians, and the spread.
#pragma once

#include <torch/types.h>

#include <functional>
#include <span>
#include <vector>

namespace cyfa::app {

struct Timing {
  double median = 0, p10 = 0, p90 = 0;  // seconds of one call
  int repeats = 0;
};

struct Task {
  std::function<void()> run;
  std::function<void()> prepare = {};  // before each run, not timed
  int calls = 1;                       // of `run` between two readings of the clock
};

// Times the tasks side by side: every round runs each of them once, after the caches were filled with other data, so that a change
// of the machine's speed meets all alike. Rounds: `repeats`, or for 0 at least 10, until the first task has run for a second or all
// together for three.
std::vector<Timing> measure(std::span<const Task> tasks, int repeats, at::Device device);

// Waits for a GPU; nothing on a CPU.
void synchronize(at::Device device);

// Times of single calls, in seconds, summarised; percentiles interpolate between neighbours.
Timing summarise(std::vector<double> seconds);

}  // namespace cyfa::app
