// What the program prints: text in printf formats, and JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cyfa::app {

using Json = nlohmann::ordered_json;

// Formats as printf does.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

// `target` is the value of the option --json (apps/options.h): "" for none, "-" for the standard output, else a file.
// Writes rows as a JSON array, one row per line; a file is written completely or not at all. Numbers that are not finite become null.
void write_rows(const std::string& target, const Json& rows);
// False if JSON takes the place of the text on the standard output.
inline bool prints_text(const std::string& target) { return target != "-"; }

// Throws io::FileError if a file at `path` could not be written: before long work, not after it.
void check_writable(const std::string& path);

std::string dump(const Json& value, int indent = -1);

}  // namespace cyfa::app
