#include "apps/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "apps/limits.h"

namespace cyfa::app {
namespace {

// Of StepThreads. A trial costs at most kTrialSteps steps at half the speed, or one slow step; with these pauses that is less than 2% of
// the time.
constexpr int kTrialSteps = 8;
constexpr double kFirstPause = 0.25, kLongestPause = 2;  // seconds
constexpr double kBetter = 0.9;                          // share of the time per step that a change must save

// How many of `count` threads, the calling one included, the system lets this process have at the same time. libgomp ends the process if
// it cannot start a thread, so it is tried beforehand.
int startable(int count) {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(count));
  try {
    while (static_cast<int>(threads.size()) + 1 < count) {
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return over; });
      });
    }
  } catch (const std::system_error&) {
    // As many as there are.
  }
  {
    const std::lock_guard lock(mutex);
    over = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
  return static_cast<int>(threads.size()) + 1;
}

}  // namespace

int allowed_threads(int64_t asked, const std::string& by) {
  const char* variable = std::getenv("OMP_NUM_THREADS");
  const int64_t by_variable = variable == nullptr ? 0 : std::strtoll(variable, nullptr, 10);
  const std::string source = asked > 0 ? by : by_variable > 0 ? "OMP_NUM_THREADS" : "";  // empty: nobody chose a number
  if (asked == 0) asked = by_variable > 0 ? by_variable : at::get_num_threads();
  const int cpus = usable_cpus();
  const int wanted = static_cast<int>(std::clamp<int64_t>(asked, 1, cpus));
  const int threads = startable(wanted);
  const auto note = [&](const std::string& reason) {
    std::cerr << "cyfa: note: " << source << " asks for " << asked << " threads; " << reason << ", so " << threads
              << (threads == 1 ? " is used\n" : " are used\n");
  };
  if (threads < wanted && !source.empty()) {
    note("the system lets this process start no more than " + std::to_string(threads) + " (see ulimit -u, ulimit -v and the cgroup)");
  } else if (!source.empty() && asked > threads) {
    note("this process has " + std::to_string(cpus) + (cpus == 1 ? " CPU" : " CPUs"));
  }
  return threads;
}

void use_threads(int64_t asked, const std::string& by) { at::set_num_threads(allowed_threads(asked, by)); }

StepThreads::StepThreads() : all_(at::get_num_threads()), pause_(kFirstPause), begin_(Clock::now()) {
  next_trial_ = begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pause_));
}

StepThreads::~StepThreads() { use(true); }

void StepThreads::use(bool all) {
  if (all_ > 1 && all != using_all_) at::set_num_threads(all ? all_ : 1);
  using_all_ = all;
}

void StepThreads::after_step() {
  if (all_ == 1) return;
  ++steps_;
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const bool hopeless = trial_ && seconds > 2 * kTrialSteps * before_;
  if (steps_ < kTrialSteps && !hopeless) return;
  const double per_step = seconds / steps_;
  if (trial_) {
    const bool better = per_step < kBetter * before_;
    if (!better) use(!using_all_);
    pause_ = better ? kFirstPause : std::min(2 * pause_, kLongestPause);
    next_trial_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pause_));
    trial_ = false;
  } else if (now >= next_trial_) {
    before_ = per_step;
    use(!using_all_);
    trial_ = true;
  }
  steps_ = 0;
  begin_ = Clock::now();
}

std::string wait_policy() {
  if (const char* count = std::getenv("GOMP_SPINCOUNT")) return "spin " + std::string(count) + " turns, then sleep (GOMP_SPINCOUNT)";
  if (const char* policy = std::getenv("OMP_WAIT_POLICY")) return std::string(policy) + " (OMP_WAIT_POLICY)";
  return "OpenMP's default";
}

}  // namespace cyfa::app
