// Helpers for tests of token folders.
#pragma once

#include <fstream>
#include <iterator>
#include <map>

#include "cyfa/data/prepare.h"
#include "tests/model/small_model.h"

namespace cyfa::test {

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The contents of a folder's files by name.
inline std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files[entry.path().filename().string()] = read_file(entry.path());
  return files;
}

inline std::vector<int64_t> tokens_of(const TokenData& data) {
  std::vector<int64_t> all(static_cast<size_t>(data.tokens()));
  data.read(0, all);
  return all;
}

inline PrepareResult prepare(const std::filesystem::path& folder, const std::filesystem::path& input,
                             const std::function<void(PrepareOptions&)>& change = nullptr) {
  PrepareOptions options;
  options.folder = folder;
  options.inputs = {input.string()};
  options.threads = 2;
  if (change) change(options);
  return Prepare(options).run();
}

}  // namespace cyfa::test
