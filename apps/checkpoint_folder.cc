#include "apps/checkpoint_folder.h"

#include <iostream>

#include "cyfa/io/file_error.h"
#include "cyfa/train/run_folder.h"

namespace cyfa::app {

std::string checkpoint_folder(const std::string& path, bool quiet) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path) || fs::exists(fs::path(path) / "config.json")) return path;
  const std::vector<RunCheckpoint> found = run_checkpoints(path);
  if (found.empty()) {
    if (!fs::exists(fs::path(path) / kRecipeFile)) return path;
    throw io::FileError(path,
                        "is the folder of a training run that has not saved a checkpoint yet; wait for its first one (recipe key "
                        "save_every), or stop it with Ctrl-C, which saves one");
  }
  const std::string newest = found.back().path.string();
  if (!quiet) std::cerr << "cyfa: note: " << path << " is a training run; using its newest checkpoint " << newest << '\n';
  return newest;
}

}  // namespace cyfa::app
