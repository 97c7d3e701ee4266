// Errors of the standard library, torch and the JSON reader in words that name no source file, type or function.
#pragma once

#include <exception>
#include <string>

namespace cyfa::app {

std::string error_text(const std::exception& error);

}  // namespace cyfa::app
