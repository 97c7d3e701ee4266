#include "apps/limits.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <vector>

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCgroupFile = "/proc/self/cgroup";
constexpr const char* kCgroupMount = "/sys/fs/cgroup";

// The number in a file, or at the head of a line "key: number kB" of it; -1 if there is none ("max").
double number_in(const fs::path& file, const std::string& key = "") {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    double value = -1;
    return std::istringstream(line.substr(key.size())) >> value ? value : -1;
  }
  return -1;
}

int64_t proc_bytes(const char* file, const char* key) { return static_cast<int64_t>(1024 * number_in(file, key)); }

struct Hierarchy {
  fs::path folder;  // where it is mounted
  fs::path group;   // of this process, absolute
};

// The hierarchy of a controller: of version 1 ("4:memory:/group") if it is mounted there, else the unified one ("0::/group").
Hierarchy hierarchy(const fs::path& cgroup_file, const fs::path& mount, const std::string& controller) {
  Hierarchy found;
  std::ifstream in(cgroup_file);
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (names == ",,") {
      if (found.folder.empty()) found = {mount, line.substr(second + 1)};
    } else if (names.find("," + controller + ",") != std::string::npos && fs::exists(mount / controller)) {
      return {mount / controller, line.substr(second + 1)};
    }
  }
  return found;
}

// The least of `limit(folder)` that is not negative, over the process's group and its parents. A container may not see its own path: what
// is missing gives -1.
double least(const Hierarchy& h, const std::function<double(const fs::path&)>& limit) {
  double least = -1;
  if (h.folder.empty()) return least;
  for (fs::path group = h.group.relative_path();; group = group.parent_path()) {
    const double one = limit(group.empty() ? h.folder : h.folder / group);
    if (one >= 0 && (least < 0 || one < least)) least = one;
    if (group.empty()) return least;
  }
}

}  // namespace

double cgroup_cpus(const fs::path& cgroup_file, const fs::path& mount) {
  return least(hierarchy(cgroup_file, mount, "cpu"), [](const fs::path& folder) {
    double quota = -1, period = -1;
    if (fs::exists(folder / "cpu.max")) {
      std::ifstream(folder / "cpu.max") >> quota >> period;  // "max 100000" leaves quota at 0
    } else {
      quota = number_in(folder / "cpu.cfs_quota_us");
      period = number_in(folder / "cpu.cfs_period_us");
    }
    return quota > 0 && period > 0 ? quota / period : -1;
  });
}

int64_t cgroup_free_memory(const fs::path& cgroup_file, const fs::path& mount) {
  const double bytes = least(hierarchy(cgroup_file, mount, "memory"), [](const fs::path& folder) {
    const bool unified = fs::exists(folder / "memory.max");
    const double limit = number_in(folder / (unified ? "memory.max" : "memory.limit_in_bytes"));
    const double used = number_in(folder / (unified ? "memory.current" : "memory.usage_in_bytes"));
    constexpr double kNone = 1e18;  // version 1 writes "no limit" as a number near 2^63
    return limit < 0 || limit > kNone || used < 0 ? -1 : std::max(0.0, limit - used);
  });
  return static_cast<int64_t>(bytes);
}

int usable_cpus() {
  int cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  for (size_t most = CPU_SETSIZE; most <= (size_t{1} << 20); most *= 4) {  // the kernel refuses a mask smaller than its own
    cpu_set_t* set = CPU_ALLOC(most);
    const bool known = set != nullptr && sched_getaffinity(0, CPU_ALLOC_SIZE(most), set) == 0;
    if (known) cpus = CPU_COUNT_S(CPU_ALLOC_SIZE(most), set);
    if (set != nullptr) CPU_FREE(set);
    if (known) break;
  }
  const double quota = cgroup_cpus(kCgroupFile, kCgroupMount);
  if (quota > 0) cpus = std::min(cpus, static_cast<int>(std::ceil(std::min(quota, 1e6))));
  return std::max(1, cpus);
}

int64_t machine_memory() { return proc_bytes("/proc/meminfo", "MemTotal:"); }

FreeMemory free_memory() {
  FreeMemory free = {proc_bytes("/proc/meminfo", "MemAvailable:"), "the machine"};
  const auto bound = [&](double bytes, const char* by) {
    if (bytes >= 0 && (free.bytes < 0 || bytes < static_cast<double>(free.bytes))) free = {static_cast<int64_t>(bytes), by};
  };
  const auto bound_by_limit = [&](auto resource, const char* used, const char* by) {
    rlimit limit = {};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    bound(std::max(0.0, static_cast<double>(limit.rlim_cur) - static_cast<double>(proc_bytes("/proc/self/status", used))), by);
  };
  bound_by_limit(RLIMIT_AS, "VmSize:", "ulimit -v");
  bound_by_limit(RLIMIT_DATA, "VmData:", "ulimit -d");
  bound(static_cast<double>(cgroup_free_memory(kCgroupFile, kCgroupMount)), "the cgroup");
  return free;
}

}  // namespace cyfa::app
