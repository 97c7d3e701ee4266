// Reads a whole file of bounded size into memory: configs, manifests, recipes, tokenizer models.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace cyfa::io {

// The bytes of a regular file. Throws FileError if the file is missing, unreadable or not a regular file, or if it has more than `most`
// bytes. `what` names the kind of file in that error: "a config".
std::string read_file(const std::filesystem::path& path, size_t most, std::string_view what);

}  // namespace cyfa::io
