// The folder shared/, which is no part of this repository: vectors of the original implementations and a corpus.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace cyfa::test {

// The folder named by CYFA_SHARED, or shared/ beside the checkout. It need not exist.
inline std::filesystem::path shared_folder() {
  if (const char* named = std::getenv("CYFA_SHARED"); named != nullptr && *named != '\0') return named;
  return std::filesystem::path(CYFA_SOURCE_DIR).parent_path() / "shared";
}

}  // namespace cyfa::test
