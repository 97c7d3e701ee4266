// What this process may use of the machine, which can be less than the machine has: CPUs (affinity mask, cgroup quota) and memory (ulimit,
// cgroup limit). For apps/threads.h, apps/memory.h and `doctor`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace cyfa::app {

// CPUs whose time this process can have, at least 1.
int usable_cpus();

struct FreeMemory {
  int64_t bytes = 0;       // that can still be allocated
  std::string limited_by;  // what bounds them: "the machine", "ulimit -v", "ulimit -d", "the cgroup"
};
FreeMemory free_memory();
int64_t machine_memory();  // bytes that the machine has

// The cgroup's part of the above: the least along the path from the process's group up to the root, in versions 1 and 2; -1 for no limit.
// `cgroup_file` is /proc/self/cgroup, `mount` /sys/fs/cgroup; tests name others.
double cgroup_cpus(const std::filesystem::path& cgroup_file, const std::filesystem::path& mount);
int64_t cgroup_free_memory(const std::filesystem::path& cgroup_file, const std::filesystem::path& mount);

}  // namespace cyfa::app
