// Checked access to the keys of a JSON object of a data folder: manifest.json, progress.json. Errors name the file and the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace cyfa {

class JsonKeys {
 public:
  // Limit of any count, so that sums and sizes in bytes do not overflow.
  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;

  // `json` and `path` must outlive this object. `name` is that of the object inside the file; empty for the whole file.
  JsonKeys(const nlohmann::ordered_json& json, const std::filesystem::path& path, std::string name);

  // Each throws io::FileError if the key is missing, or has a value of another type or out of range.
  const nlohmann::ordered_json& at(const char* key) const;
  JsonKeys object(const char* key) const { return {at(key), path_, full(key)}; }
  int64_t count(const char* key, int64_t most = kMost) const;  // from 0 to `most`
  std::optional<int64_t> optional_count(const char* key, int64_t most) const;
  bool flag(const char* key) const;
  std::string string(const char* key) const;
  uint64_t hash(const char* key) const;  // 16 hexadecimal digits
  void expect(const char* key, const std::string& wanted) const;

 private:
  std::string full(const char* key) const { return name_.empty() ? key : name_ + "." + key; }
  [[noreturn]] void fail(const char* key, const std::string& wanted) const;

  const nlohmann::ordered_json& json_;
  const std::filesystem::path& path_;
  std::string name_;
};

}  // namespace cyfa
