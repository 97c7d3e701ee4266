#include "apps/provided.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <stdexcept>

#include "cyfa/io/file_error.h"
#include "cyfa/io/nearest_name.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;

struct Kind {
  const char* what;       // in messages
  const char* folder;     // "configs"
  const char* extension;  // ".json"
  const char* hint;       // how to see the names
};
constexpr Kind kConfig = {"model", "configs", ".json",
                          "`cyfa models` lists the names of configs; a path names a config file or checkpoint"};
constexpr Kind kRecipe = {"recipe", "recipes", ".toml", "wanted a file (TOML)"};

// The file that this code is in: the executable, or the library that Python has loaded.
fs::path this_file() {
  Dl_info info;
  link_map* file = nullptr;
  const bool found = dladdr1(&kConfig, &info, reinterpret_cast<void**>(&file), RTLD_DL_LINKMAP) != 0;
  if (found && file->l_name[0] != '\0') return file->l_name;
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);  // the dynamic linker gives the executable no name
}

std::vector<fs::path> provided_files(const Kind& kind) {
  std::vector<fs::path> files;
  std::error_code error;
  const fs::path folder = provided_folder() / kind.folder;
  if (!fs::is_directory(folder, error)) return files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == kind.extension) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

fs::path path_of(const Kind& kind, const std::string& given) {
  std::error_code error;
  if (given.empty()) throw std::invalid_argument(std::string(kind.what) + " is empty; " + kind.hint);
  if (fs::exists(given, error)) return given;
  const fs::path path(given);
  const std::string folder = path.parent_path().string(), extension = path.extension().string();
  const bool named = folder.empty() || folder == kind.folder;
  const std::string name = extension == kind.extension ? path.stem().string() : path.filename().string();
  std::vector<std::string> names;
  for (const fs::path& file : provided_files(kind)) {
    names.push_back(file.stem().string());
    if (named && names.back() == name) return file;
  }
  throw std::invalid_argument(std::string("no ") + kind.what + " is called " + io::printable(given) + ", and no file has this path" +
                              io::did_you_mean(name, names) + "\n" + kind.hint);
}

}  // namespace

fs::path provided_folder() {
  std::error_code error;
  const fs::path above = this_file().parent_path().parent_path();
  for (const fs::path& root : {above / "share/cyfa", above}) {
    if (fs::is_directory(root / kConfig.folder, error)) return root;
  }
  return CYFA_SOURCE_DIR;
}

std::vector<fs::path> provided_configs() {
  std::vector<fs::path> files = provided_files(kConfig);
  if (files.empty()) {
    throw std::runtime_error(
        "found no folder of configs, neither beside this program nor in its source tree; name config files or folders of them");
  }
  return files;
}

fs::path model_path(const std::string& given) { return path_of(kConfig, given); }

fs::path config_path(const std::string& given) {
  const fs::path path = model_path(given);
  if (fs::is_directory(path)) throw io::FileError(path, "is a folder; wanted a config file (a checkpoint's is config.json in its folder)");
  return path;
}

std::string name_of(const fs::path& model) {
  const fs::path plain = model.has_filename() ? model : model.parent_path();  // "DIR/"
  return plain.extension() == kConfig.extension ? plain.stem().string() : plain.filename().string();
}

fs::path recipe_path(const std::string& given) { return path_of(kRecipe, given); }

}  // namespace cyfa::app
