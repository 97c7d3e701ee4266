// The folders that commands take as a model.
#pragma once

#include <string>

namespace cyfa::app {

// `path` itself, or the newest checkpoint if it is the folder of a training run; a note on the standard error then names it, unless
// `quiet`. Throws io::FileError for a run without checkpoints.
std::string checkpoint_folder(const std::string& path, bool quiet = false);

}  // namespace cyfa::app
