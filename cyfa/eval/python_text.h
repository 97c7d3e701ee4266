// Characters and words as Python's str and re take them, for metrics that are defined by Python code; text.h has more. Bytes that are not
// valid UTF-8 count as U+FFFD.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cyfa::eval {

std::u32string code_points(std::string_view text);
void append_utf8(std::string& text, char32_t character);

bool is_space(char32_t character);  // str.isspace
bool is_word(char32_t character);   // \w: letters, digits and "_"

// str.split(): the pieces between runs of white space.
std::vector<std::string_view> split(std::string_view text);
// str.split(separator): one more piece than there are separators.
std::vector<std::string_view> split(std::string_view text, char separator);
// " ".join(text.split())
std::string collapse(std::string_view text);

}  // namespace cyfa::eval
