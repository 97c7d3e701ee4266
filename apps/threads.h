// The number of CPU threads, set here for every command, and how they wait for each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace cyfa::app {

// The number of threads to use for `asked` (0: the default, OMP_NUM_THREADS or one per core): never more than this process has CPUs for or
// the system lets it start. `by` is what asked ("--threads"). A note on the standard error says when there are fewer than asked for.
int allowed_threads(int64_t asked, const std::string& by);

// Gives torch allowed_threads(asked, by). main calls it with 0 before every command.
void use_threads(int64_t asked, const std::string& by);

// How threads wait for their next work, in words for `doctor`.
std::string wait_policy();

// Decodes with all threads or with one, whichever is faster at the moment. A decode step of a small model is dozens of parallel loops of
// some microseconds. If other processes keep the CPUs busy, the threads of a loop seldom run at the same time, and one thread alone is many
// times faster; if the machine is idle, all threads are. So from time to time a few steps are run in the other way, and the faster way is
// kept. The results of decode steps on a CPU do not depend on the number of threads.
class StepThreads {
 public:
  StepThreads();
  ~StepThreads();
  StepThreads(const StepThreads&) = delete;
  StepThreads& operator=(const StepThreads&) = delete;

  // Call after each step, on the thread that runs them.
  void after_step();

 private:
  using Clock = std::chrono::steady_clock;

  void use(bool all);

  int all_;
  bool using_all_ = true, trial_ = false;
  int steps_ = 0;      // since begin_
  double before_ = 0;  // seconds per step before the trial
  double pause_;       // seconds between trials
  Clock::time_point begin_, next_trial_;
};

}  // namespace cyfa::app
