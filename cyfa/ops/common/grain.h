// How finely work on a CPU is divided among threads: the grain size of at::parallel_for for loops of this project.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cyfa::ops {

// The least work of a task, in numbers that it reads or multiplies: about ten microseconds. Waking a thread takes as long, so smaller work
// runs on the thread that has it. Results never depend on it.
inline constexpr int64_t kTaskWork = 1 << 15;

// Items per task, for items of `numbers` each.
inline int64_t grain(int64_t numbers) { return std::max<int64_t>(1, kTaskWork / std::max<int64_t>(1, numbers)); }

}  // namespace cyfa::ops
