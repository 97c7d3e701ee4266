#include "apps/ranks.h"

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <utility>

namespace cyfa::app {
namespace {

std::optional<Launcher>& set() {
  static std::optional<Launcher> launcher;
  return launcher;
}

}  // namespace

void launch_by(Launcher launcher) { set() = std::move(launcher); }
const Launcher* launcher() { return set() ? &*set() : nullptr; }

void refuse_ranks_without_python() {
  const char* size = std::getenv("WORLD_SIZE");
  if (std::getenv("RANK") == nullptr || size == nullptr || std::atoi(size) < 2) return;
  throw std::invalid_argument(std::string("this is one of ") + size +
                              " processes that torchrun has started (WORLD_SIZE), but the program alone cannot find the others; start "
                              "them with: torchrun --nproc-per-node N -m cyfa train ...");
}

}  // namespace cyfa::app
