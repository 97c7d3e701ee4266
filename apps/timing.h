// Wall-clock timing on a noisy machine: rounds in which each task runs once, summarised by median and spread.
#pragma once

#include <torch/types.h>

#include <functional>
#include <span>
#include <vector>

namespace cyfa::app {

struct Timing {
  double median = 0, p10 = 0, p90 = 0;  // seconds per call
  int repeats = 0;
};

struct Task {
  std::function<void()> run;
  std::function<void()> prepare = {};  // before each run, not timed
  int calls = 1;                       // calls of `run` between two readings of the clock
};

// Times the tasks side by side: every round flushes the caches and runs each task once, so that a change of the machine's speed affects
// all alike. Runs `repeats` rounds; for 0 at least 10, until the first task has taken one second or all tasks together three.
std::vector<Timing> measure(std::span<const Task> tasks, int repeats, at::Device device);

// Waits for the GPU; does nothing on a CPU.
void synchronize(at::Device device);

// Summarises times of single calls, in seconds; percentiles interpolate between neighbours.
Timing summarise(std::vector<double> seconds);

}  // namespace cyfa::app
