// How the values of all options are read, in one place: commands declare options with the types and checks of CLI11.
#pragma once

#include <CLI/CLI.hpp>

namespace cyfa::app {

// Puts a check of this program before those of CLI11 on every option of `app` and of its commands. CLI11 takes 0x10 and 010 for integers,
// wraps negative ones and cuts long ones to 64 bits, lets NaN pass every range, and explains a refusal by its own type names. Here
//   an integer is decimal digits, with a sign where negative numbers have a meaning, within 64 bits and the option's range;
//   a number is finite; a choice that is none of the option's names gets the nearest one; the path of a file is not empty;
// and a refusal says what was given and what was wanted. Flags take no value.
void check_values(CLI::App& app);

}  // namespace cyfa::app
