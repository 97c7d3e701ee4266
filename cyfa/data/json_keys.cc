// See json_keys.h.
#include "cyfa/data/json_keys.h"

#include "cyfa/io/file_error.h"

namespace cyfa {

using nlohmann::ordered_json;

JsonKeys::JsonKeys(const ordered_json& json, const std::filesystem::path& path, std::string name)
    : json_(json), path_(path), name_(std::move(name)) {
  if (!json.is_object()) throw io::FileError(path, (name_.empty() ? "the file" : name_) + " is not a JSON object");
}

void JsonKeys::fail(const char* key, const std::string& wanted) const {
  throw io::FileError(path_, full(key) + " is " + io::printable(at(key).dump()) + "; wanted " + wanted);
}

const ordered_json& JsonKeys::at(const char* key) const {
  const auto found = json_.find(key);
  if (found == json_.end()) throw io::FileError(path_, "the key " + full(key) + " is missing");
  return *found;
}

int64_t JsonKeys::count(const char* key, int64_t most) const {
  const ordered_json& value = at(key);
  if (!value.is_number_integer() || value < 0 || value > most) fail(key, "a whole number from 0 to " + std::to_string(most));
  return value.get<int64_t>();
}

std::optional<int64_t> JsonKeys::optional_count(const char* key, int64_t most) const {
  if (at(key).is_null()) return std::nullopt;
  return count(key, most);
}

bool JsonKeys::flag(const char* key) const {
  const ordered_json& value = at(key);
  if (!value.is_boolean()) fail(key, "true or false");
  return value.get<bool>();
}

std::string JsonKeys::string(const char* key) const {
  const ordered_json& value = at(key);
  if (!value.is_string()) fail(key, "a string");
  return value.get<std::string>();
}

uint64_t JsonKeys::hash(const char* key) const {
  const std::string text = string(key);
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos) fail(key, "16 hexadecimal digits");
  return std::stoull(text, nullptr, 16);
}

void JsonKeys::expect(const char* key, const std::string& wanted) const {
  if (string(key) != wanted) fail(key, io::printable(wanted));
}

}  // namespace cyfa
