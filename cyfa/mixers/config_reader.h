// Reads a Hugging Face config.json key by key, and knows at the end which keys nobody asked for.
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

// A config that cannot be used; names the key, what came and what was wanted.
class ConfigError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class ConfigReader {
 public:
  // `where`: what stands before a key in errors, for an object inside another: "attn.".
  explicit ConfigReader(const Json& config, std::string where = "");

  // An absent key, or null, gives the default.
  int64_t integer(const std::string& key, int64_t otherwise, int64_t least, int64_t most);
  std::optional<int64_t> integer_or_null(const std::string& key, int64_t least, int64_t most);
  double number(const std::string& key, double otherwise, double least, double most);
  std::optional<double> number_or_null(const std::string& key, double least, double most);
  std::pair<double, double> range(const std::string& key, double low, double high);  // a list of two; infinity as {"__float__": "Infinity"}
  bool flag(const std::string& key, bool otherwise);
  std::string word(const std::string& key, const std::string& otherwise, const std::vector<std::string>& allowed);
  const Json* object(const std::string& key);  // null where absent
  const Json* list(const std::string& key);    // null where absent

  // Keys that origins have and of which this program can do one value alone; absent and null are that value too.
  void only(const std::string& key, const Json& value);

  // Keys that change nothing here, and are kept as they are.
  void bookkeeping(const std::vector<std::string>& keys);

  [[noreturn]] void fail(const std::string& key, const std::string& wanted) const;

  const std::set<std::string>& known() const { return known_; }
  std::vector<std::string> unknown() const;  // keys that nobody asked for
  void refuse_unknown() const;               // throws ConfigError where there are any
  // Every key that was asked for with the value that counts: the config's own, or the default.
  const Json& resolved() const { return resolved_; }

 private:
  const Json* find(const std::string& key);

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
