// One string out of a line of JSON, without building the rest. A line of a corpus is one long string and a little around it, and a general
// parser spends as long on it as the tokenizer does.
#pragma once

#include <string>
#include <string_view>

namespace cyfa {

struct JsonText {
  std::string problem;    // empty, or why there is no text
  std::string_view text;  // part of the line or of `buffer`
  bool replaced = false;  // an escape named half of a surrogate pair, which became U+FFFD
};

// The string at the key `field` of the object that `line` is, the last one where there are several. All of the line must be JSON; bytes
// that are no UTF-8 are let through. A mark of the byte order at the beginning is passed over.
JsonText json_text(std::string_view line, std::string_view field, std::string& buffer);

}  // namespace cyfa
