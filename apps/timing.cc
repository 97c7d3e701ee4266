#include "apps/timing.h"

#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/machine.h"

namespace cyfa::app {
namespace {

constexpr int kLeastRounds = 10;
constexpr double kLeastSeconds = 1.0;  // of the first task alone
constexpr double kMostSeconds = 3.0;   // of all tasks together

// Evicts other data from the caches: overwrites twice a CPU's last-level cache, or more than the L2 of any GPU.
class CacheFlush {
 public:
  explicit CacheFlush(at::Device device)
      : buffer_(
            at::ones({(device.is_cpu() ? 2 * last_cache_bytes() : int64_t{256} << 20) / 4}, at::TensorOptions(device).dtype(at::kFloat))) {}

  void operator()() { buffer_.neg_(); }

 private:
  at::Tensor buffer_;
};

double seconds_of(const Task& task, at::Device device) {
  using Clock = std::chrono::steady_clock;
  synchronize(device);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < task.calls; ++i) task.run();
  synchronize(device);
  return std::chrono::duration<double>(Clock::now() - start).count() / task.calls;
}

double percentile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

}  // namespace

void synchronize(at::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

Timing summarise(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {percentile(seconds, 0.5), percentile(seconds, 0.1), percentile(seconds, 0.9), static_cast<int>(seconds.size())};
}

std::vector<Timing> measure(std::span<const Task> tasks, int repeats, at::Device device) {
  CacheFlush flush(device);
  std::vector<std::vector<double>> seconds(tasks.size());
  for (const Task& task : tasks) {
    if (task.prepare) task.prepare();
    seconds_of(task, device);
  }
  double first_task = 0;
  double all_tasks = 0;
  const auto enough = [&](int rounds) { return rounds >= kLeastRounds && (first_task >= kLeastSeconds || all_tasks >= kMostSeconds); };
  for (int round = 0; repeats > 0 ? round < repeats : !enough(round); ++round) {
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].prepare) tasks[i].prepare();
      flush();
      seconds[i].push_back(seconds_of(tasks[i], device));
      all_tasks += seconds[i].back() * tasks[i].calls;
    }
    first_task += seconds[0].back() * tasks[0].calls;
  }
  std::vector<Timing> timings;
  for (std::vector<double>& s : seconds) timings.push_back(summarise(std::move(s)));
  return timings;
}

}  // namespace cyfa::app
