#include "apps/machine.h"

#include <ATen/Version.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <sys/resource.h>
#include <sys/utsname.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>

#include "commit.h"
#ifdef CYFA_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace cyfa::app {
namespace {

// The value of the first line "key : value" of /proc/<file>.
std::string proc_value(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int64_t status_bytes(const char* key) {
  std::istringstream value(proc_value("/proc/self/status", key));
  int64_t kib = 0;
  value >> kib;
  return kib * 1024;
}

#ifdef CYFA_CUDA
c10::DeviceIndex gpu_index(c10::Device device) { return device.has_index() ? device.index() : c10::cuda::current_device(); }
#endif

}  // namespace

std::string commit() { return CYFA_COMMIT; }

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string build_torch() { return CYFA_TORCH_VERSION; }

// The loaded library lists it among its build settings: "..., TORCH_VERSION=2.13.0, ...".
std::string runtime_torch() {
  const std::string settings = at::show_config();
  const std::string key = "TORCH_VERSION=";
  const size_t begin = settings.find(key);
  if (begin == std::string::npos) return "unknown";
  const size_t end = settings.find_first_of(", \n", begin);
  return settings.substr(begin + key.size(), end - begin - key.size());
}

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char out[32];
  return {out, std::strftime(out, sizeof out, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::string cpu_model() {
  for (const char* key : {"model name", "Model", "Hardware"}) {
    const std::string value = proc_value("/proc/cpuinfo", key);
    if (!value.empty()) return value;
  }
  utsname names = {};
  return uname(&names) == 0 ? names.machine : "unknown";
}

std::vector<std::string> cpu_features() {
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags"));
  std::vector<std::string> all;
  for (std::string flag; flags >> flag;) all.push_back(flag);
  std::vector<std::string> found;
  for (const char* wanted : {"sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (std::find(all.begin(), all.end(), wanted) != all.end()) found.emplace_back(wanted);
  }
  return found;
}

int64_t last_cache_bytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  const int64_t bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return int64_t{32} << 20;
}

std::vector<Gpu> gpus() {
  std::vector<Gpu> found(torch::cuda::device_count());
#ifdef CYFA_CUDA
  for (size_t i = 0; i < found.size(); ++i) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, static_cast<int>(i)) != cudaSuccess) continue;
    found[i] = {properties.name, std::to_string(properties.major) + "." + std::to_string(properties.minor)};
  }
#endif
  return found;
}

std::string machine_name(c10::Device device) {
  if (!device.is_cuda()) return cpu_model();
  const std::vector<Gpu> found = gpus();
  const auto index = static_cast<size_t>(device.has_index() ? device.index() : 0);
  return index < found.size() && !found[index].name.empty() ? found[index].name : "unknown GPU";
}

int64_t free_bytes(c10::Device device) {
#ifdef CYFA_CUDA
  if (device.is_cuda()) {
    size_t free = 0, all = 0;
    return cudaMemGetInfo(&free, &all) == cudaSuccess ? static_cast<int64_t>(free) : 0;
  }
#endif
  if (device.is_cuda()) return 0;
  int64_t free = 0;
  std::istringstream(proc_value("/proc/meminfo", "MemAvailable")) >> free;
  free *= 1024;
  int64_t limit = 0, used = 0;  // "max" without a limit
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    free = std::min(free, std::max<int64_t>(limit - used, 0));
  }
  return free;
}

std::optional<int64_t> peak_gpu_bytes([[maybe_unused]] c10::Device device) {
#ifdef CYFA_CUDA
  if (device.is_cuda()) {
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return c10::cuda::CUDACachingAllocator::getDeviceStats(gpu_index(device)).allocated_bytes[all].peak;
  }
#endif
  return std::nullopt;
}

void reset_gpu_peak([[maybe_unused]] c10::Device device) {
#ifdef CYFA_CUDA
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::resetPeakStats(gpu_index(device));
#endif
}

int64_t resident_bytes() { return status_bytes("VmRSS"); }

int64_t peak_resident_bytes() {
  const int64_t peak = status_bytes("VmHWM");
  if (peak > 0) return peak;
  rusage usage = {};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss * 1024 : 0;
}

void reset_peak() {
#ifdef __GLIBC__
  malloc_trim(0);  // freed memory that malloc keeps would be reused and not count
#endif
  std::ofstream("/proc/self/clear_refs") << 5;
}

}  // namespace cyfa::app
