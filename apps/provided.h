// The configs and recipes that come with the program, and the names by which commands take them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cyfa::app {

// The folder that holds configs/ and recipes/: share/cyfa beside the folder of the installed program, or of the library of the Python
// package; else the source tree.
std::filesystem::path provided_folder();

// The config files that come with the program, in the order of their names. They are found from any working directory.
std::vector<std::filesystem::path> provided_configs();

// A model as the user names it: a config file or a checkpoint directory, or, if there is no such path, a config that comes with the program
// by NAME, as `cyfa models` lists it, or as configs/NAME.json. Throws std::invalid_argument if it is none of these.
std::filesystem::path model_path(const std::string& given);

// The same for commands that take no checkpoint.
std::filesystem::path config_path(const std::string& given);
// "cyfa-400m" for a config file of that name and for a checkpoint directory of that name.
std::string name_of(const std::filesystem::path& model);

// The same as model_path() for a recipe file: a path, NAME or recipes/NAME.toml.
std::filesystem::path recipe_path(const std::string& given);

}  // namespace cyfa::app
