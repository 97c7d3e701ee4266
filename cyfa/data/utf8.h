// UTF-8 in pieces: where a text that is still growing may be cut, and what to show for bytes that are no text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cyfa {

// Length of the longest prefix that does not end inside a character which more bytes could complete.
size_t whole_characters(std::string_view bytes);

bool is_utf8(std::string_view bytes);

// Every maximal run of bytes that is no character becomes U+FFFD.
std::string as_utf8(std::string_view bytes);

}  // namespace cyfa
