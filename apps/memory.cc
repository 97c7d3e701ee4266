#include "apps/memory.h"

#include <cstdlib>

#include "apps/limits.h"
#include "apps/output.h"

namespace cyfa::app {
namespace {

constexpr const char* kAdvice =
    "Make the model, the batch or the sequences smaller (in a recipe: batch, context, or a larger accumulate), take --dtype bf16 where it "
    "is "
    "offered, or use a machine with more memory";

std::string size_text(double bytes) {
  if (bytes >= double{1 << 30}) return text("%.1f GiB", bytes / double{1 << 30});
  return bytes >= double{1 << 20} ? text("%.1f MiB", bytes / double{1 << 20}) : text("%.0f bytes", bytes);
}

}  // namespace

std::string out_of_memory(double wanted) {
  const FreeMemory free = free_memory();
  std::string words = "out of memory";
  if (wanted > 0) words += ": " + size_text(wanted) + " more were wanted in one piece";
  words += text("%s %s of the machine's %s are free", wanted > 0 ? "," : ":", size_text(static_cast<double>(free.bytes)).c_str(),
                size_text(static_cast<double>(machine_memory())).c_str());
  if (free.limited_by != "the machine") words += " for this process, limited by " + free.limited_by;
  return words + ". " + kAdvice;
}

std::string out_of_memory(const std::bad_alloc& error) {
  const auto* known = dynamic_cast<const OutOfMemory*>(&error);
  return out_of_memory(known == nullptr ? 0.0 : static_cast<double>(known->wanted()));
}

std::string memory_words(const std::string& message) {
  // "[enforce fail at alloc_cpu.cpp:...] ... DefaultCPUAllocator: can't allocate memory: you tried to allocate 123 bytes. Error code 12"
  const std::string tried = "you tried to allocate ";
  const size_t cpu = message.find("DefaultCPUAllocator"), at = message.find(tried);
  if (cpu != std::string::npos && at != std::string::npos) return out_of_memory(std::strtod(message.c_str() + at + tried.size(), nullptr));
  // "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of ... of which 1.20 GiB is free. ..." The rest is about
  // settings of torch's allocator.
  const size_t gpu = message.find("CUDA out of memory");
  if (gpu == std::string::npos) return message;
  const std::string stop = " is free.";
  const size_t end = message.find(stop, gpu);
  return message.substr(gpu, end == std::string::npos ? end : end + stop.size() - gpu) + " " + kAdvice;
}

}  // namespace cyfa::app
