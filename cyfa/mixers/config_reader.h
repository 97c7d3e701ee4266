// Typed access to the keys of a Hugging Face config.json. Tracks which keys were read, so that unknown keys can be rejected.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cyfa {

using Json = nlohmann::ordered_json;

// An invalid config. The message names the key, its value and what was expected.
class ConfigError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// A value for error messages: in ASCII, at most 60 bytes.
std::string shortened(const Json& value);

// Reads one JSON object, which must outlive the reader.
class ConfigReader {
 public:
  // `where` is a prefix for keys in error messages, for a nested object: "attn.".
  explicit ConfigReader(const Json& config, std::string where = "");

  // Typed getters. An absent or null key gives the default `otherwise` (or nullopt). A value of the wrong type or outside [least, most]
  // throws ConfigError.
  int64_t integer(const std::string& key, int64_t otherwise, int64_t least, int64_t most);
  std::optional<int64_t> integer_or_null(const std::string& key, int64_t least, int64_t most);
  double number(const std::string& key, double otherwise, double least, double most);
  std::optional<double> number_or_null(const std::string& key, double least, double most);
  // The same for keys of which null has a meaning of its own: an absent key gives `absent`, null gives nullopt.
  std::optional<int64_t> integer_or_null(const std::string& key, std::optional<int64_t> absent, int64_t least, int64_t most);
  std::optional<double> number_or_null(const std::string& key, std::optional<double> absent, double least, double most);
  std::pair<double, double> range(const std::string& key, double low, double high);  // a list of two; infinity as {"__float__": "Infinity"}
  bool flag(const std::string& key, bool otherwise);
  std::string word(const std::string& key, const std::string& otherwise, const std::vector<std::string>& allowed);
  const Json* object(const std::string& key);  // null if absent
  const Json* list(const std::string& key);    // null if absent

  // Declares a key of which only one value is supported. Absent and null are accepted as that value; any other throws ConfigError.
  void only(const std::string& key, const Json& value);

  // Declares a key that the caller reads by itself, with its effective value.
  void note(const std::string& key, const Json& value);

  // Declares keys that are accepted and have no effect.
  void bookkeeping(const std::vector<std::string>& keys);

  // Throws ConfigError for `key`, saying what was wanted instead of its value.
  [[noreturn]] void fail(const std::string& key, const std::string& wanted) const;

  const std::set<std::string>& known() const { return known_; }  // all keys that were read or declared
  std::vector<std::string> unknown() const;                      // keys of the config that were neither read nor declared
  void refuse_unknown() const;                                   // throws ConfigError if there are any
  // Every key that was read, with its effective value: the config's or the default.
  const Json& resolved() const { return resolved_; }

 private:
  const Json* find(const std::string& key);  // marks the key as known; null if it is absent or null

  template <class T>
  T resolve(const std::string& key, T value) {
    resolved_[key] = value;
    return value;
  }

  const Json& config_;
  std::string where_;
  std::set<std::string> known_;
  Json resolved_ = Json::object();
};

}  // namespace cyfa
