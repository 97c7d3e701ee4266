#include "apps/ranks.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <utility>

#include "apps/commands.h"
#include "apps/error_text.h"
#include "apps/parse.h"
#include "cyfa/train/trainer.h"

namespace cyfa::app {
namespace {

std::optional<Launcher>& set() {
  static std::optional<Launcher> launcher;
  return launcher;
}

}  // namespace

void launch_by(Launcher launcher) { set() = std::move(launcher); }
const Launcher* launcher() { return set() ? &*set() : nullptr; }

Groups join_ranks(const Recipe& recipe) {
  const Launcher* started = launcher();
  const int64_t ranks = started == nullptr ? 1 : started->ranks, context = recipe.context_ranks;
  if (ranks % context != 0) {
    throw std::invalid_argument("recipe: context_ranks is " + std::to_string(context) + ", wanted a divisor of the number of ranks, " +
                                std::to_string(ranks));
  }
  if (started == nullptr) return {};
  if (const int64_t parts = recipe.accumulate * ranks / context; recipe.batch % parts != 0) {
    throw std::invalid_argument("recipe: batch is " + std::to_string(recipe.batch) + ", wanted a multiple of accumulate times " +
                                (context > 1 ? "ranks / context_ranks" : "ranks") + " = " + std::to_string(parts));
  }
  const std::string names = started->join(recipe.device, 60 * recipe.timeout_minutes, static_cast<int>(context));
  Groups groups = {{names.substr(0, names.find(' ')), started->rank, started->ranks}, {}};
  if (context > 1) {
    groups.context = {names.substr(names.find(' ') + 1), started->rank % static_cast<int>(context), static_cast<int>(context)};
  }
  return groups;
}

c10::Device rank_device(const Recipe& recipe) {
  const c10::Device device = parse_device(recipe.device);
  if (launcher() == nullptr || !device.is_cuda()) return device;
  return {device.type(), static_cast<c10::DeviceIndex>(launcher()->local_rank % at::getNumGPUs())};
}

int as_rank(const std::function<int()>& action) {
  const Launcher* all = launcher();
  if (all == nullptr) {
    refuse_ranks_without_python();
    return action();
  }
  const std::string name = "rank " + std::to_string(all->rank) + " of " + std::to_string(all->ranks) + ": ";
  try {
    return action();
  } catch (const GroupError& e) {
    const std::string cause = all->report(e.what(), false);
    throw std::runtime_error(name + (cause.empty() ? "" : cause + "; ") + e.what());
  } catch (const TrainingError& e) {  // the same on all ranks, unless sequences are cut over them
    all->report(e.what(), true);
    if (all->rank > 0) return kBadInput;
    throw;
  } catch (const std::exception& e) {
    const std::string words = error_text(e);
    all->report(words, true);
    throw std::runtime_error(name + words);
  }
}

void refuse_ranks_without_python() {
  const char* size = std::getenv("WORLD_SIZE");
  if (std::getenv("RANK") == nullptr || size == nullptr || std::atoi(size) < 2) return;
  throw std::invalid_argument(std::string("this is one of ") + size +
                              " processes that torchrun has started (WORLD_SIZE), but the program alone cannot find the others; start "
                              "them with: torchrun --nproc-per-node N -m cyfa train ...");
}

}  // namespace cyfa::app
