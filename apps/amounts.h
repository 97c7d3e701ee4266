// Amounts in messages, with a unit that fits their size.
#pragma once

#include <string>

namespace cyfa::app {

std::string count_text(double count);   // "12.3 thousand", "2.0 million", "1.39 billion"
std::string short_count(double count);  // "12.3K", "2.0M", "1.39G"
std::string bytes_text(double bytes);   // "96 bytes", "12.0 KiB", "24.8 MiB", "1.50 GiB"

}  // namespace cyfa::app
