// What the program prints: lines made with printf formats, and JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cyfa::app {

using Json = nlohmann::ordered_json;

// As printf does it.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

// Writes rows as a JSON array, one row a line, to a file (whole or not at all) or, for "-", to the standard output. Numbers that
// are not finite come out as null.
void write_rows(const std::string& target, const Json& rows);

std::string dump(const Json& value, int indent = -1);

}  // namespace cyfa::app
