// What this program is and what it runs on, for `doctor` and for benchmark rows.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cyfa::app {

std::string commit();         // of the sources, "-dirty" if changed; "unknown" outside a repository
std::string compiler();       // "g++ 12.2.0"
std::string build_torch();    // the version compiled against
std::string runtime_torch();  // the version loaded
std::string utc_date();       // 2030-01-31T12:00:00Z

std::string cpu_model();
std::vector<std::string> cpu_features();  // those present of sse4_2, avx, avx2, fma, avx512f, avx512_bf16, amx_bf16
int64_t last_cache_bytes();               // 32 MiB where the system does not say

struct Gpu {
  std::string name;        // "" in a build without CUDA
  std::string capability;  // "9.0"; "" in a build without CUDA
};
std::vector<Gpu> gpus();

// What a measurement on `device` ran on: the GPU's name, or the CPU's.
std::string machine_name(c10::Device device);

// Memory that can still be allocated: a GPU's free memory, or the system's within the limit of this process's control group. 0 where the
// system does not say.
int64_t free_bytes(c10::Device device);

// Resident memory of this process and its peak. reset_peak returns freed memory to the system and restarts the peak from what is in use,
// where the system allows it.
int64_t resident_bytes();
int64_t peak_resident_bytes();
void reset_peak();

// The most memory that torch has held on a GPU at once since reset_gpu_peak; nothing on a CPU.
std::optional<int64_t> peak_gpu_bytes(c10::Device device);
void reset_gpu_peak(c10::Device device);

}  // namespace cyfa::app
