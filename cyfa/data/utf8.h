// UTF-8 in parts: where a growing text may be cut, and how to show bytes that are not valid text. Used by tokenizers, `cyfa prepare` and
// the output of generated text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cyfa {

// Length of the longest prefix that does not end inside a character which further bytes could complete.
size_t whole_characters(std::string_view bytes);

// Whether all bytes form valid UTF-8.
bool is_utf8(std::string_view bytes);

// The text with every maximal run of bytes that is not a character replaced by U+FFFD.
std::string as_utf8(std::string_view bytes);

}  // namespace cyfa
