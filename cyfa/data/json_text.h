// Extracts one string from a line of JSON without building a document. A line of a corpus is one long string and little else, on which a
// general parser spends as much time as the tokenizer. Used by prepare.cc.
#pragma once

#include <string>
#include <string_view>

namespace cyfa {

// Result of json_text.
struct JsonText {
  std::string problem;    // why there is no text; empty if there is one
  std::string_view text;  // part of the line or of `buffer`, valid as long as these
  bool replaced = false;  // an escape was half of a surrogate pair and became U+FFFD
};

// The string at key `field` of the JSON object in `line`; the last one if the key occurs several times. The whole line must be valid JSON,
// but bytes that are not valid UTF-8 are accepted. A byte order mark at the beginning is skipped. `buffer` holds the text if it contains
// escapes.
JsonText json_text(std::string_view line, std::string_view field, std::string& buffer);

}  // namespace cyfa
