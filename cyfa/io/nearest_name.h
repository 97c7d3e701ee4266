// The name that a misspelt word most likely means, for error messages: commands, options, recipe keys, models.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cyfa::io {

// The name that differs from `word` in case only, that `word` alone begins, or that a few edits make of it (a letter added, left out or
// replaced, or two neighbours swapped; none in words of three letters, one up to five, then a third of the letters). Empty if there is
// none.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

// "; did you mean NAME?", or empty.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace cyfa::io
