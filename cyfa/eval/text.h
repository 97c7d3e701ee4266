// Python's string operations that the definitions of tasks are written in. Texts are UTF-8; what is not valid counts byte by byte.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cyfa::eval {

std::string_view strip(std::string_view text);                                            // str.strip(): Unicode white space at both ends
std::string_view right_strip(std::string_view text);                                      // str.rstrip()
std::string_view strip(std::string_view text, std::string_view these);                    // str.strip(these), for ASCII characters
size_t characters(std::string_view text);                                                 // len(): code points
std::string lower(std::string_view text);                                                 // str.lower(), one character for one
std::string capitalized(std::string_view text);                                           // str.capitalize(), one character for one
std::string replaced(std::string_view text, std::string_view from, std::string_view to);  // str.replace()
size_t pieces_at_white_space(std::string_view text);                                      // len(re.split(r"\s+", text))

// The byte at which `wanted` first occurs, ignoring case; npos if it does not.
size_t find_ignoring_case(std::string_view text, std::string_view wanted);
bool ends_ignoring_case(std::string_view text, std::string_view ending);
// Whether any of `wanted` occurs, ignoring case. An empty one always does.
bool contains_any(std::string_view text, const std::vector<std::string>& wanted);

}  // namespace cyfa::eval
