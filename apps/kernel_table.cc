#include "apps/kernel_table.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "apps/output.h"

namespace cyfa::app {

KernelTable::KernelTable() {
  namespace impl = torch::profiler::impl;
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  const std::set<impl::ActivityType> activities = {impl::ActivityType::CPU, impl::ActivityType::CUDA};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
}

void KernelTable::print(const char* span) const {
  struct Kernel {
    double ms = 0;
    int64_t count = 0;
  };
  std::map<std::string, Kernel> kernels;
  double total = 0;
  struct Span {
    int64_t from, to;  // in ns
    std::string name;
  };
  std::vector<Span> spans;
  const auto result = torch::autograd::profiler::disableProfiler();
  for (const auto& event : result->events()) {
    if (event.deviceType() != at::kCUDA) continue;
    spans.push_back({static_cast<int64_t>(event.startNs()), static_cast<int64_t>(event.endNs()), event.name()});
  }
  // A gap of a microsecond between kernels is normal; in a gap of 5 us or more the GPU waits for the host. A kernel that starts while
  // another runs counts from the end of that one.
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.to < b.to; });
  double between = 0, waits = 0;
  int64_t end = spans.empty() ? 0 : spans.front().from;
  for (const Span& one : spans) {
    if (one.from > end) (one.from - end < 5000 ? between : waits) += static_cast<double>(one.from - end) * 1e-6;
    Kernel& kernel = kernels[one.name];
    const double ms = static_cast<double>(one.to - std::max(one.from, end)) * 1e-6;
    kernel.ms += ms;
    kernel.count += 1;
    total += ms;
    end = one.to;
  }
  std::vector<std::pair<std::string, Kernel>> sorted(kernels.begin(), kernels.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  std::cout << text("%9s %6s %6s  kernel (%s: %.2f ms of GPU time, %.2f ms between kernels, %.2f ms waiting for the host)\n", "ms", "share",
                    "calls", span, total, between, waits);
  for (const auto& [name, kernel] : sorted) {
    std::cout << text("%9.3f %5.1f%% %6lld  %s\n", kernel.ms, 100 * kernel.ms / total, static_cast<long long>(kernel.count),
                      name.substr(0, 120).c_str());
  }
}

}  // namespace cyfa::app
