// What this program is and what it runs on, for `doctor` and for the rows of a benchmark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cyfa::app {

std::string commit();         // of the sources, "-dirty" if changed; "unknown" outside a repository
std::string compiler();       // "g++ 12.2.0"
std::string build_torch();    // the version compiled against
std::string runtime_torch();  // the version loaded
std::string utc_date();       // 2030-01-31T12:00:00Z

std::string cpu_model();
std::vector<std::string> cpu_features();  // of sse4_2, avx, avx2, fma, avx512f, avx512_bf16, amx_bf16 (x86), those that are there
int64_t last_cache_bytes();               // 32 MiB where the system does not say

struct Gpu {
  std::string name;        // "" in a build without CUDA
  std::string capability;  // "9.0", likewise
};
std::vector<Gpu> gpus();

// Memory of this process. reset_peak gives freed memory back and starts the peak again from what is in use
// then, where the system allows it.
int64_t resident_bytes();
int64_t peak_resident_bytes();
void reset_peak();

}  // namespace cyfa::app
