// The one reader of JSON files. Files are not trusted: size, number of values and nesting are bounded while a text is parsed, because
// nlohmann's values are copied, printed and destroyed by recursion. An object with a key that occurs twice is refused: parsers disagree
// on which of the two counts.
//
// The headers of safetensors files, of which no tree is built, have a parser of their own (safetensors.cc), and so do the lines of text
// that `cyfa prepare` reads (cyfa/data/json_text.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace cyfa::io {

// What a kind of file may hold at most.
struct JsonLimits {
  std::string_view what = "a JSON file";  // its name in errors: "a config"
  size_t bytes = 1 << 20;
  size_t values = 1 << 16;  // objects, lists, strings, numbers, true, false and null, at every level
  size_t depth = 32;        // of objects and lists inside one another
};

// Parses a text. Throws FileError for `path` if it is not JSON or beyond the limits.
nlohmann::ordered_json parse_json(std::string_view text, const std::filesystem::path& path, const JsonLimits& limits = {});
// The same for the contents of a file.
nlohmann::ordered_json read_json(const std::filesystem::path& path, const JsonLimits& limits = {});
// The same for text that may be damaged, such as the last line of a log: null if it is not JSON or beyond the limits.
nlohmann::ordered_json json_or_null(std::string_view text, const JsonLimits& limits = {});

}  // namespace cyfa::io
