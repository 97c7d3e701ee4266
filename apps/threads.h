// The number of CPU threads, set here for every command, and how they wait for each other.
#pragma once

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

}  // namespace cyfa::app
